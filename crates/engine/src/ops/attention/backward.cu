// The gradient of attention in bf16 on tensor cores. Weights are made again from scores and `sums`; `levels` has what all
// weights of a query lose, the product of its mixture and the mixture's gradient.
//
// Two kinds of blocks, each with TILE frames of one head of a row. One has keys, passes over the queries, and sums what they
// add to keys and values; the other has queries, passes over the keys, and sums what they add to queries. So the scores are
// made twice (seven products instead of five), and every sum has one owner and one order.
//
// Grid: heads, rows, 2 · tiles of the longest row. With `causal` the first keys and the last queries have the most to do.

constexpr u32 TILE = BACKWARD_TILES * 64;
constexpr u32 TILE_BYTES = TILE * FRAME_BYTES;

// What both kinds of blocks are given: one head of a row.
struct Head {
    Frames q, k, v, gradient;
    const f32 *sums, *levels;  // Every `heads` floats belongs to this head.
    bf16* out;                 // As `q`: keys and values are `width` and 2·`width` behind.
    u64 width;
    u32 heads, frames, valid;
    bool causal;
};

// Scores to weights, and their gradients to those of scores. Queries run across, with their sums and levels in shared
// memory; where they run down a lane has its own.
template <u32 M, u32 N>
__device__ inline void finish_across(f32 (&scores)[M][N][4], f32 (&slopes)[M][N][4], const f32* sums, const f32* levels) {
    const f32 power = rsqrtf((f32)SIZE) * LOG2_E;
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 j = 0; j < N; j++) {
        const u32 at = j * 8 + lane % 4 * 2;
        const f32 sum[2] = {sums[at] * LOG2_E, sums[at + 1] * LOG2_E}, level[2] = {levels[at], levels[at + 1]};
#pragma unroll
        for (u32 i = 0; i < M * 4; i++) {
            f32 weight = power_of_two(__fmaf_rn(scores[i / 4][j][i % 4], power, -sum[i % 2]));
            scores[i / 4][j][i % 4] = weight;
            slopes[i / 4][j][i % 4] = weight * (slopes[i / 4][j][i % 4] - level[i % 2]);
        }
    }
}

template <u32 M, u32 N>
__device__ inline void finish_down(const f32 (&scores)[M][N][4], f32 (&slopes)[M][N][4], const f32 (&sums)[M][2],
                                   const f32 (&levels)[M][2]) {
    const f32 power = rsqrtf((f32)SIZE) * LOG2_E;
#pragma unroll
    for (u32 i = 0; i < M * N * 4; i++) {
        const u32 m = i / 4 / N, j = i / 4 % N, c = i % 4;
        f32 weight = power_of_two(__fmaf_rn(scores[m][j][c], power, -sums[m][c / 2]));
        slopes[m][j][c] = weight * (slopes[m][j][c] - levels[m][c / 2]);
    }
}

// Begins to copy queries, the gradients of their mixtures, their sums and their levels. All are zeros past the end, where
// weights are then 1 and add zeros.
__device__ inline void begin_queries(u32 to, const Head& x, u32 first) {
    constexpr u32 BYTES = BACKWARD_QUERIES * FRAME_BYTES;
    begin_tile<BACKWARD_QUERIES>(to, x.q, first);
    begin_tile<BACKWARD_QUERIES>(to + BYTES, x.gradient, first);
    const u32 i = threadIdx.x % BACKWARD_QUERIES;
    const bool there = first + i < x.valid;
    const u64 at = there ? (u64)(first + i) * x.heads : 0;
    if (threadIdx.x < BACKWARD_QUERIES)
        copy_4(to + 2 * BYTES + i * 4, x.sums + at, there);
    else if (threadIdx.x < 2 * BACKWARD_QUERIES)
        copy_4(to + 2 * BYTES + (BACKWARD_QUERIES + i) * 4, x.levels + at, there);
}

// The gradient of the keys and values from `first` on.
__device__ inline void of_keys(const Head& x, u32 first, u8* memory) {
    constexpr u32 M = BACKWARD_TILES, N = BACKWARD_QUERIES / 8, BYTES = BACKWARD_QUERIES * FRAME_BYTES;
    constexpr u32 STAGE_BYTES = 2 * BYTES + 2 * BACKWARD_QUERIES * 4;
    const u32 keys = shared_address(memory), values = keys + TILE_BYTES;
    const u32 mine = threadIdx.x / 32 * 16 * M, key = first + mine;
    // Earlier queries see none of these keys; padding is seen by nobody.
    const u32 begin = x.causal ? first / BACKWARD_QUERIES * BACKWARD_QUERIES : 0, end = first < x.valid ? x.valid : 0;

    begin_tile<TILE>(keys, x.k, first);
    begin_tile<TILE>(values, x.v, first);
    begin_queries(values + TILE_BYTES, x, begin);
    wait_for_copies();
    __syncthreads();

    f32 of_k[M][SIZE / 8][4], of_v[M][SIZE / 8][4];
    clear(of_k);
    clear(of_v);
    for (u32 query = begin, stage = 0; query < end; query += BACKWARD_QUERIES, stage ^= 1) {
        const u32 offset = 2 * TILE_BYTES + stage * STAGE_BYTES, queries = keys + offset, gradients = queries + BYTES;
        if (query + BACKWARD_QUERIES < end)
            begin_queries(keys + 2 * TILE_BYTES + (stage ^ 1) * STAGE_BYTES, x, query + BACKWARD_QUERIES);
        if (key < x.valid && !(x.causal && query + BACKWARD_QUERIES - 1 < key)) {
            f32 scores[M][N][4], slopes[M][N][4];
            clear(scores);
            clear(slopes);
            multiply_frames(scores, keys + mine * FRAME_BYTES, queries);
            multiply_frames(slopes, values + mine * FRAME_BYTES, gradients);
            if (x.causal && key + 16 * M - 1 > query) hide(scores, query, key, x.valid, true, true);
            const f32* sums = (const f32*)(memory + offset + 2 * BYTES);
            finish_across(scores, slopes, sums, sums + BACKWARD_QUERIES);
            mix_frames(of_v, scores, gradients);
            mix_frames(of_k, slopes, queries);
        }
        wait_for_copies();
        __syncthreads();
    }

    const u32 valid = left_of(x.valid, key), count = left_of(x.frames, key);
    bf16* to = x.out + key * 3 * x.width;
    f32 scale[M][2], one[M][2];
#pragma unroll
    for (u32 i = 0; i < M * 2; i++) scale[i / 2][i % 2] = rsqrtf((f32)SIZE), one[i / 2][i % 2] = 1.0f;
    store_frames(memory + mine * FRAME_BYTES, of_k, scale, to + x.width, 3 * x.width, valid, count);
    store_frames(memory + TILE_BYTES + mine * FRAME_BYTES, of_v, one, to + 2 * x.width, 3 * x.width, valid, count);
}

// The gradient of the queries from `first` on.
__device__ inline void of_queries(const Head& x, u32 first, u8* memory) {
    constexpr u32 M = BACKWARD_TILES, N = BACKWARD_KEYS / 8, BYTES = BACKWARD_KEYS * FRAME_BYTES;
    const u32 queries = shared_address(memory), gradients = queries + TILE_BYTES, stages = gradients + TILE_BYTES;
    const u32 lane = threadIdx.x % 32, mine = threadIdx.x / 32 * 16 * M, query = first + mine;
    const u32 end = first >= x.valid ? 0 : x.causal ? min_of(x.valid, first + TILE) : x.valid;

    begin_tile<TILE>(queries, x.q, first);
    begin_tile<TILE>(gradients, x.gradient, first);
    begin_tile<BACKWARD_KEYS>(stages, x.k, 0);
    begin_tile<BACKWARD_KEYS>(stages + BYTES, x.v, 0);
    f32 sums[M][2], levels[M][2];
#pragma unroll
    for (u32 i = 0; i < M * 2; i++) {
        const u32 frame = query + i * 8 + lane / 4;
        const bool there = frame < x.valid;
        sums[i / 2][i % 2] = there ? x.sums[(u64)frame * x.heads] * LOG2_E : 0.0f;
        levels[i / 2][i % 2] = there ? x.levels[(u64)frame * x.heads] : 0.0f;
    }
    wait_for_copies();
    __syncthreads();

    f32 of_q[M][SIZE / 8][4];
    clear(of_q);
    for (u32 key = 0, stage = 0; key < end; key += BACKWARD_KEYS, stage ^= 1) {
        const u32 keys = stages + stage * 2 * BYTES, next = stages + (stage ^ 1) * 2 * BYTES;
        if (key + BACKWARD_KEYS < end) {
            begin_tile<BACKWARD_KEYS>(next, x.k, key + BACKWARD_KEYS);
            begin_tile<BACKWARD_KEYS>(next + BYTES, x.v, key + BACKWARD_KEYS);
        }
        if (query < x.valid && !(x.causal && key > query + 16 * M - 1)) {
            f32 scores[M][N][4], slopes[M][N][4];
            clear(scores);
            clear(slopes);
            multiply_frames(scores, queries + mine * FRAME_BYTES, keys);
            multiply_frames(slopes, gradients + mine * FRAME_BYTES, keys + BYTES);
            if (key + BACKWARD_KEYS > x.valid || (x.causal && key + BACKWARD_KEYS - 1 > query))
                hide(scores, query, key, x.valid, x.causal, false);
            finish_down(scores, slopes, sums, levels);
            mix_frames(of_q, slopes, keys);
        }
        wait_for_copies();
        __syncthreads();
    }

    f32 scale[M][2];
#pragma unroll
    for (u32 i = 0; i < M * 2; i++) scale[i / 2][i % 2] = rsqrtf((f32)SIZE);
    store_frames(memory + mine * FRAME_BYTES, of_q, scale, x.out + query * 3 * x.width, 3 * x.width,
                 left_of(x.valid, query), left_of(x.frames, query));
}

extern "C" __global__ void __launch_bounds__(128)
    NAMED(attention_gradient_bf16_)(u32 batch, u32 heads, u32 size, u32 causal, const bf16* qkv, const u32* starts,
                                    const i32* lengths, const f32* sums, const f32* levels, const bf16* gradient,
                                    bf16* out) {
    extern __shared__ __align__(128) u8 memory[];
    const u32 head = blockIdx.x, tile = blockIdx.z / 2;
    const bool has_keys = blockIdx.z % 2 == 0;
    const u32 first = (has_keys ? tile : gridDim.z / 2 - 1 - tile) * TILE;
    const Row row(starts, lengths, blockIdx.y);
    if (first >= row.frames) return;
    const u64 width = (u64)heads * SIZE, start = row.start;
    const bf16* at = qkv + start * 3 * width + head * SIZE;
    const Head x{{at, 3 * width, row.valid},
                 {at + width, 3 * width, row.valid},
                 {at + 2 * width, 3 * width, row.valid},
                 {gradient + start * width + head * SIZE, width, row.valid},
                 sums + start * heads + head,
                 levels + start * heads + head,
                 out + start * 3 * width + head * SIZE,
                 width,
                 heads,
                 row.frames,
                 row.valid,
                 causal != 0};
    if (has_keys)
        of_keys(x, first, memory);
    else
        of_queries(x, first, memory);
}
