// Flash attention, backward pass, in bf16 on tensor cores (Dao et al. 2022, FlashAttention; Dao 2023, FlashAttention-2).
// Probabilities are recomputed from the scores and `lse`; `delta` is rowsum(dO * O), one number per query and head:
// P = exp(S - lse), dP = dO·Vᵀ, dS = P * (dP - delta), dV = Pᵀ·dO, dQ = dS·K, dK = dSᵀ·Q.
//
// Two kinds of blocks, each with TILE frames of one head of a row. One owns keys, loops over the queries and accumulates dK
// and dV; the other owns queries, loops over the keys and accumulates dQ. So the scores are computed twice (seven GEMMs
// instead of five), no atomics are needed, and every sum has one owner and one order: results are deterministic.
//
// Grid: heads, rows, 2 · tiles of the longest row. With `causal` the first keys and the last queries have the most work.

constexpr u32 TILE = BACKWARD_TILES * 64;
constexpr u32 TILE_BYTES = TILE * FRAME_BYTES;

// The arguments of both kinds of blocks: one head of a row.
struct Head {
    HeadMatrix q, k, v, dout;
    const f32 *lse, *delta;  // Strided by `heads`.
    bf16* dq;                // Laid out as `q`: dK and dV are `width` and 2·`width` behind.
    u64 width;
    u32 heads, frames, valid;
    bool causal;
};

// Scores to probabilities P, and dP to dS, in place. Rows are keys and columns are queries, whose lse and delta are in
// shared memory.
template <u32 M, u32 N>
__device__ inline void softmax_backward_transposed(f32 (&scores)[M][N][4], f32 (&dp)[M][N][4], const f32* lse,
                                                   const f32* delta) {
    const f32 softmax_scale_log2 = rsqrtf((f32)HEAD_DIM) * LOG2_E;
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 j = 0; j < N; j++) {
        const u32 at = j * 8 + lane % 4 * 2;
        const f32 lse_log2[2] = {lse[at] * LOG2_E, lse[at + 1] * LOG2_E}, delta_here[2] = {delta[at], delta[at + 1]};
#pragma unroll
        for (u32 i = 0; i < M * 4; i++) {
            f32 p = exp2_approx(__fmaf_rn(scores[i / 4][j][i % 4], softmax_scale_log2, -lse_log2[i % 2]));
            scores[i / 4][j][i % 4] = p;
            dp[i / 4][j][i % 4] = p * (dp[i / 4][j][i % 4] - delta_here[i % 2]);
        }
    }
}

// dP to dS in place. Rows are queries; a lane has the lse, in units of log 2, and the delta of its own rows.
template <u32 M, u32 N>
__device__ inline void softmax_backward(const f32 (&scores)[M][N][4], f32 (&dp)[M][N][4], const f32 (&lse_log2)[M][2],
                                        const f32 (&delta)[M][2]) {
    const f32 softmax_scale_log2 = rsqrtf((f32)HEAD_DIM) * LOG2_E;
#pragma unroll
    for (u32 i = 0; i < M * N * 4; i++) {
        const u32 m = i / 4 / N, j = i / 4 % N, c = i % 4;
        f32 p = exp2_approx(__fmaf_rn(scores[m][j][c], softmax_scale_log2, -lse_log2[m][c / 2]));
        dp[m][j][c] = p * (dp[m][j][c] - delta[m][c / 2]);
    }
}

// Starts the copy of queries, their dO, lse and delta. All are zeros past the end, where P is then 1 and contributes zeros.
__device__ inline void load_queries_async(u32 to, const Head& x, u32 first) {
    constexpr u32 BYTES = BACKWARD_QUERIES * FRAME_BYTES;
    load_tile_async<BACKWARD_QUERIES>(to, x.q, first);
    load_tile_async<BACKWARD_QUERIES>(to + BYTES, x.dout, first);
    const u32 i = threadIdx.x % BACKWARD_QUERIES;
    const bool in_bounds = first + i < x.valid;
    const u64 at = in_bounds ? (u64)(first + i) * x.heads : 0;
    if (threadIdx.x < BACKWARD_QUERIES)
        cp_async_4(to + 2 * BYTES + i * 4, x.lse + at, in_bounds);
    else if (threadIdx.x < 2 * BACKWARD_QUERIES)
        cp_async_4(to + 2 * BYTES + (BACKWARD_QUERIES + i) * 4, x.delta + at, in_bounds);
}

// dK and dV of the keys from `first` on.
__device__ inline void backward_dk_dv(const Head& x, u32 first, u8* memory) {
    constexpr u32 M = BACKWARD_TILES, N = BACKWARD_QUERIES / 8, BYTES = BACKWARD_QUERIES * FRAME_BYTES;
    constexpr u32 STAGE_BYTES = 2 * BYTES + 2 * BACKWARD_QUERIES * 4;
    const u32 k_tile = shared_address(memory), v_tile = k_tile + TILE_BYTES;
    const u32 warp_key = threadIdx.x / 32 * 16 * M, key = first + warp_key;
    // With `causal`, earlier queries mask these keys. Padding keys are always masked.
    const u32 begin = x.causal ? first / BACKWARD_QUERIES * BACKWARD_QUERIES : 0, end = first < x.valid ? x.valid : 0;

    load_tile_async<TILE>(k_tile, x.k, first);
    load_tile_async<TILE>(v_tile, x.v, first);
    load_queries_async(v_tile + TILE_BYTES, x, begin);
    cp_async_wait_all();
    __syncthreads();

    f32 acc_dk[M][HEAD_DIM / 8][4], acc_dv[M][HEAD_DIM / 8][4];
    clear(acc_dk);
    clear(acc_dv);
    for (u32 query = begin, stage = 0; query < end; query += BACKWARD_QUERIES, stage ^= 1) {
        const u32 offset = 2 * TILE_BYTES + stage * STAGE_BYTES, q_tile = k_tile + offset, dout_tile = q_tile + BYTES;
        if (query + BACKWARD_QUERIES < end)
            load_queries_async(k_tile + 2 * TILE_BYTES + (stage ^ 1) * STAGE_BYTES, x, query + BACKWARD_QUERIES);
        if (key < x.valid && !(x.causal && query + BACKWARD_QUERIES - 1 < key)) {
            f32 scores[M][N][4], dp[M][N][4];
            clear(scores);
            clear(dp);
            gemm_nt(scores, k_tile + warp_key * FRAME_BYTES, q_tile);
            gemm_nt(dp, v_tile + warp_key * FRAME_BYTES, dout_tile);
            if (x.causal && key + 16 * M - 1 > query) apply_mask(scores, query, key, x.valid, true, true);
            const f32* lse = (const f32*)(memory + offset + 2 * BYTES);
            softmax_backward_transposed(scores, dp, lse, lse + BACKWARD_QUERIES);
            gemm_rs(acc_dv, scores, dout_tile);
            gemm_rs(acc_dk, dp, q_tile);
        }
        cp_async_wait_all();
        __syncthreads();
    }

    const u32 valid = frames_before(x.valid, key), count = frames_before(x.frames, key);
    bf16* to = x.dq + key * 3 * x.width;
    f32 softmax_scale[M][2], one[M][2];
#pragma unroll
    for (u32 i = 0; i < M * 2; i++) softmax_scale[i / 2][i % 2] = rsqrtf((f32)HEAD_DIM), one[i / 2][i % 2] = 1.0f;
    store_frames(memory + warp_key * FRAME_BYTES, acc_dk, softmax_scale, to + x.width, 3 * x.width, valid, count);
    store_frames(memory + TILE_BYTES + warp_key * FRAME_BYTES, acc_dv, one, to + 2 * x.width, 3 * x.width, valid, count);
}

// dQ of the queries from `first` on.
__device__ inline void backward_dq(const Head& x, u32 first, u8* memory) {
    constexpr u32 M = BACKWARD_TILES, N = BACKWARD_KEYS / 8, BYTES = BACKWARD_KEYS * FRAME_BYTES;
    const u32 q_tile = shared_address(memory), dout_tile = q_tile + TILE_BYTES, stages = dout_tile + TILE_BYTES;
    const u32 lane = threadIdx.x % 32, warp_query = threadIdx.x / 32 * 16 * M, query = first + warp_query;
    const u32 end = first >= x.valid ? 0 : x.causal ? min_of(x.valid, first + TILE) : x.valid;

    load_tile_async<TILE>(q_tile, x.q, first);
    load_tile_async<TILE>(dout_tile, x.dout, first);
    load_tile_async<BACKWARD_KEYS>(stages, x.k, 0);
    load_tile_async<BACKWARD_KEYS>(stages + BYTES, x.v, 0);
    f32 lse_log2[M][2], delta[M][2];
#pragma unroll
    for (u32 i = 0; i < M * 2; i++) {
        const u32 frame = query + i * 8 + lane / 4;
        const bool in_bounds = frame < x.valid;
        lse_log2[i / 2][i % 2] = in_bounds ? x.lse[(u64)frame * x.heads] * LOG2_E : 0.0f;
        delta[i / 2][i % 2] = in_bounds ? x.delta[(u64)frame * x.heads] : 0.0f;
    }
    cp_async_wait_all();
    __syncthreads();

    f32 acc_dq[M][HEAD_DIM / 8][4];
    clear(acc_dq);
    for (u32 key = 0, stage = 0; key < end; key += BACKWARD_KEYS, stage ^= 1) {
        const u32 k_tile = stages + stage * 2 * BYTES, next = stages + (stage ^ 1) * 2 * BYTES;
        if (key + BACKWARD_KEYS < end) {
            load_tile_async<BACKWARD_KEYS>(next, x.k, key + BACKWARD_KEYS);
            load_tile_async<BACKWARD_KEYS>(next + BYTES, x.v, key + BACKWARD_KEYS);
        }
        if (query < x.valid && !(x.causal && key > query + 16 * M - 1)) {
            f32 scores[M][N][4], dp[M][N][4];
            clear(scores);
            clear(dp);
            gemm_nt(scores, q_tile + warp_query * FRAME_BYTES, k_tile);
            gemm_nt(dp, dout_tile + warp_query * FRAME_BYTES, k_tile + BYTES);
            if (key + BACKWARD_KEYS > x.valid || (x.causal && key + BACKWARD_KEYS - 1 > query))
                apply_mask(scores, query, key, x.valid, x.causal, false);
            softmax_backward(scores, dp, lse_log2, delta);
            gemm_rs(acc_dq, dp, k_tile);
        }
        cp_async_wait_all();
        __syncthreads();
    }

    f32 softmax_scale[M][2];
#pragma unroll
    for (u32 i = 0; i < M * 2; i++) softmax_scale[i / 2][i % 2] = rsqrtf((f32)HEAD_DIM);
    store_frames(memory + warp_query * FRAME_BYTES, acc_dq, softmax_scale, x.dq + query * 3 * x.width, 3 * x.width,
                 frames_before(x.valid, query), frames_before(x.frames, query));
}

extern "C" __global__ void __launch_bounds__(128)
    NAMED(attention_gradient_bf16_)(u32 batch, u32 heads, u32 head_dim, u32 causal, const bf16* qkv, const u32* starts,
                                    const i32* lengths, const f32* lse, const f32* delta, const bf16* dout,
                                    bf16* dqkv) {
    extern __shared__ __align__(128) u8 memory[];
    const u32 head = blockIdx.x, tile = blockIdx.z / 2;
    const bool owns_keys = blockIdx.z % 2 == 0;
    const u32 first = (owns_keys ? tile : gridDim.z / 2 - 1 - tile) * TILE;
    const Row row(starts, lengths, blockIdx.y);
    if (first >= row.frames) return;
    const u64 width = (u64)heads * HEAD_DIM, start = row.start;
    const bf16* at = qkv + start * 3 * width + head * HEAD_DIM;
    const Head x{{at, 3 * width, row.valid},
                 {at + width, 3 * width, row.valid},
                 {at + 2 * width, 3 * width, row.valid},
                 {dout + start * width + head * HEAD_DIM, width, row.valid},
                 lse + start * heads + head,
                 delta + start * heads + head,
                 dqkv + start * 3 * width + head * HEAD_DIM,
                 width,
                 heads,
                 row.frames,
                 row.valid,
                 causal != 0};
    if (owns_keys)
        backward_dk_dv(x, first, memory);
    else
        backward_dq(x, first, memory);
}
