// Flash attention, forward pass, in bf16 on tensor cores (Dao et al. 2022, FlashAttention; Dao 2023, FlashAttention-2), with
// online softmax (Milakov & Gimelshein 2018).
//
// A block computes BLOCK_QUERIES queries of one head of a row and loops over tiles of keys and values, double-buffered with
// cp.async. A warp owns 16·FORWARD_TILES of the queries: their scores, probabilities and acc_o stay in its registers.
//
// Grid: heads, rows, query tiles of the longest row. Blocks start in this order, last tile first: with `causal` it has the
// most keys.

constexpr u32 BLOCK_QUERIES = FORWARD_TILES * 64;
constexpr u32 KEY_BYTES = FORWARD_KEYS * FRAME_BYTES;

extern "C" __global__ void __launch_bounds__(128)
    NAMED(attention_bf16_)(u32 batch, u32 heads, u32 head_dim, u32 causal, const bf16* qkv, const u32* starts,
                           const i32* lengths, bf16* out, f32* lse) {
    constexpr u32 M = FORWARD_TILES, N = FORWARD_KEYS / 8;
    extern __shared__ __align__(128) u8 memory[];
    const u32 head = blockIdx.x, first = (gridDim.z - 1 - blockIdx.z) * BLOCK_QUERIES;
    const Row row(starts, lengths, blockIdx.y);
    if (first >= row.frames) return;
    const u64 width = (u64)heads * HEAD_DIM;
    const bf16* at = qkv + (u64)row.start * 3 * width + head * HEAD_DIM;
    const HeadMatrix q{at, 3 * width, row.valid}, k{at + width, 3 * width, row.valid},
        v{at + 2 * width, 3 * width, row.valid};
    const u32 q_tile = shared_address(memory), stages = q_tile + BLOCK_QUERIES * FRAME_BYTES;
    const u32 lane = threadIdx.x % 32, warp_query = threadIdx.x / 32 * 16 * M;
    const u32 end = first >= row.valid ? 0 : causal ? min_of(row.valid, first + BLOCK_QUERIES) : row.valid;

    load_tile_async<BLOCK_QUERIES>(q_tile, q, first);
    load_tile_async<FORWARD_KEYS>(stages, k, 0);
    load_tile_async<FORWARD_KEYS>(stages + KEY_BYTES, v, 0);
    cp_async_wait_all();
    __syncthreads();

    // Up to 64 columns the queries fit in registers beside everything else: a third fewer loads in front of the scores.
    constexpr bool Q_IN_REGISTERS = HEAD_DIM <= 64;
    u32 q_fragments[Q_IN_REGISTERS ? HEAD_DIM / 16 : 1][M][4];
    if (Q_IN_REGISTERS) {
#pragma unroll
        for (u32 i = 0; i < HEAD_DIM / 16 * M; i++)
            ldmatrix_x4(q_fragments[Q_IN_REGISTERS ? i / M : 0][i % M],
                        advance_columns(q_tile + warp_query * FRAME_BYTES + lane_offset_a(), i / M) +
                            i % M * 16 * FRAME_BYTES);
    }

    const f32 softmax_scale = rsqrtf((f32)HEAD_DIM), softmax_scale_log2 = softmax_scale * LOG2_E;
    // row_max and row_sum are per query: of unscaled scores, and of exp(score - row_max). Each lane sums its own columns.
    f32 acc_o[M][HEAD_DIM / 8][4], row_max[M][2], row_sum[M][2];
    clear(acc_o);
#pragma unroll
    for (u32 i = 0; i < M * 2; i++) row_max[i / 2][i % 2] = -__uint_as_float(0x7f800000u), row_sum[i / 2][i % 2] = 0.0f;

    for (u32 key = 0, stage = 0; key < end; key += FORWARD_KEYS, stage ^= 1) {
        const u32 k_tile = stages + stage * 2 * KEY_BYTES, next = stages + (stage ^ 1) * 2 * KEY_BYTES;
        if (key + FORWARD_KEYS < end) {
            load_tile_async<FORWARD_KEYS>(next, k, key + FORWARD_KEYS);
            load_tile_async<FORWARD_KEYS>(next + KEY_BYTES, v, key + FORWARD_KEYS);
        }
        const u32 query = first + warp_query;
        // A warp skips keys that all its queries mask, and padding queries. Every query attends to the first keys.
        if (query < row.valid && !(causal && key > query + 16 * M - 1)) {
            f32 scores[M][N][4];
            clear(scores);
            if (Q_IN_REGISTERS) {
#pragma unroll
                for (u32 step = 0; step < HEAD_DIM / 16; step++)
                    gemm_nt_step(scores, q_fragments[Q_IN_REGISTERS ? step : 0], k_tile, step);
            } else {
                gemm_nt(scores, q_tile + warp_query * FRAME_BYTES, k_tile);
            }
            if (key + FORWARD_KEYS > row.valid || (causal && key + FORWARD_KEYS - 1 > query))
                apply_mask(scores, query, key, row.valid, causal, false);
#pragma unroll
            for (u32 r = 0; r < M * 2; r++) {
                const u32 i = r / 2, half = r % 2 * 2;
                f32 new_max = row_max[i][r % 2];
#pragma unroll
                for (u32 j = 0; j < N; j++) new_max = fmaxf(new_max, fmaxf(scores[i][j][half], scores[i][j][half + 1]));
                new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 1));
                new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));
                const f32 correction = exp2_approx((row_max[i][r % 2] - new_max) * softmax_scale_log2);
                const f32 max_scaled = new_max * softmax_scale_log2;
                row_max[i][r % 2] = new_max;
                f32 sum = row_sum[i][r % 2] * correction;
#pragma unroll
                for (u32 j = 0; j < N; j++) {
#pragma unroll
                    for (u32 c = half; c < half + 2; c++) {
                        scores[i][j][c] = exp2_approx(__fmaf_rn(scores[i][j][c], softmax_scale_log2, -max_scaled));
                        sum += scores[i][j][c];
                    }
                }
                row_sum[i][r % 2] = sum;
#pragma unroll
                for (u32 j = 0; j < HEAD_DIM / 8; j++)
                    acc_o[i][j][half] *= correction, acc_o[i][j][half + 1] *= correction;
            }
            gemm_rs(acc_o, scores, k_tile + KEY_BYTES);
        }
        cp_async_wait_all();
        __syncthreads();
    }

    const u32 valid = frames_before(row.valid, first + warp_query);
    const u32 count = frames_before(row.frames, first + warp_query);
    const u64 begin = (u64)row.start + first + warp_query;
    f32 inverse_sum[M][2];
#pragma unroll
    for (u32 r = 0; r < M * 2; r++) {
        const u32 i = r / 2, frame = r * 8 + lane / 4;
        f32 sum = row_sum[i][r % 2];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        inverse_sum[i][r % 2] = 1.0f / sum;
        if (lane % 4 == 0 && frame < count)
            lse[(begin + frame) * heads + head] = frame < valid ? row_max[i][r % 2] * softmax_scale + logf(sum) : 0.0f;
    }
    store_frames(memory + warp_query * FRAME_BYTES, acc_o, inverse_sum, out + begin * width + head * HEAD_DIM, width,
                 valid, count);
}
