// Attention in bf16 on tensor cores. A block has QUERIES frames of one head of a row and passes over the keys; a warp has
// 16·FORWARD_TILES of the queries to itself, and their scores, weights and mixtures stay in its registers.
//
// Grid: heads, rows, tiles of the longest row. Blocks start in this order, and with `causal` the last tile has the most keys.

constexpr u32 QUERIES = FORWARD_TILES * 64;
constexpr u32 KEY_BYTES = FORWARD_KEYS * FRAME_BYTES;

extern "C" __global__ void __launch_bounds__(128)
    NAMED(attention_bf16_)(u32 batch, u32 heads, u32 size, u32 causal, const bf16* qkv, const u32* starts,
                           const i32* lengths, bf16* out, f32* sums) {
    constexpr u32 M = FORWARD_TILES, N = FORWARD_KEYS / 8;
    extern __shared__ __align__(128) u8 memory[];
    const u32 head = blockIdx.x, first = (gridDim.z - 1 - blockIdx.z) * QUERIES;
    const Row row(starts, lengths, blockIdx.y);
    if (first >= row.frames) return;
    const u64 width = (u64)heads * SIZE;
    const bf16* at = qkv + (u64)row.start * 3 * width + head * SIZE;
    const Frames q{at, 3 * width, row.valid}, k{at + width, 3 * width, row.valid}, v{at + 2 * width, 3 * width, row.valid};
    const u32 queries = shared_address(memory), stages = queries + QUERIES * FRAME_BYTES;
    const u32 lane = threadIdx.x % 32, mine = threadIdx.x / 32 * 16 * M;
    const u32 end = first >= row.valid ? 0 : causal ? min_of(row.valid, first + QUERIES) : row.valid;

    begin_tile<QUERIES>(queries, q, first);
    begin_tile<FORWARD_KEYS>(stages, k, 0);
    begin_tile<FORWARD_KEYS>(stages + KEY_BYTES, v, 0);
    wait_for_copies();
    __syncthreads();

    // Up to 64 columns the queries fit in registers beside everything else: a third fewer loads in front of the scores.
    constexpr bool KEPT = SIZE <= 64;
    u32 kept[KEPT ? SIZE / 16 : 1][M][4];
    if (KEPT) {
#pragma unroll
        for (u32 i = 0; i < SIZE / 16 * M; i++)
            load_matrices(kept[KEPT ? i / M : 0][i % M],
                          further(queries + mine * FRAME_BYTES + lane_down(), i / M) + i % M * 16 * FRAME_BYTES);
    }

    const f32 scale = rsqrtf((f32)SIZE), power = scale * LOG2_E;
    f32 mixtures[M][SIZE / 8][4], highest[M][2], total[M][2];
    clear(mixtures);
#pragma unroll
    for (u32 i = 0; i < M * 2; i++) highest[i / 2][i % 2] = -__uint_as_float(0x7f800000u), total[i / 2][i % 2] = 0.0f;

    for (u32 key = 0, stage = 0; key < end; key += FORWARD_KEYS, stage ^= 1) {
        const u32 keys = stages + stage * 2 * KEY_BYTES, next = stages + (stage ^ 1) * 2 * KEY_BYTES;
        if (key + FORWARD_KEYS < end) {
            begin_tile<FORWARD_KEYS>(next, k, key + FORWARD_KEYS);
            begin_tile<FORWARD_KEYS>(next + KEY_BYTES, v, key + FORWARD_KEYS);
        }
        const u32 query = first + mine;
        // A warp whose queries are padding, or see none of these keys, has nothing to do. All see the first keys.
        if (query < row.valid && !(causal && key > query + 16 * M - 1)) {
            f32 scores[M][N][4];
            clear(scores);
            if (KEPT) {
#pragma unroll
                for (u32 step = 0; step < SIZE / 16; step++) multiply_step(scores, kept[KEPT ? step : 0], keys, step);
            } else {
                multiply_frames(scores, queries + mine * FRAME_BYTES, keys);
            }
            if (key + FORWARD_KEYS > row.valid || (causal && key + FORWARD_KEYS - 1 > query))
                hide(scores, query, key, row.valid, causal, false);
#pragma unroll
            for (u32 r = 0; r < M * 2; r++) {
                const u32 i = r / 2, half = r % 2 * 2;
                f32 high = highest[i][r % 2];
#pragma unroll
                for (u32 j = 0; j < N; j++) high = fmaxf(high, fmaxf(scores[i][j][half], scores[i][j][half + 1]));
                high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
                high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
                const f32 shrunk = power_of_two((highest[i][r % 2] - high) * power), level = high * power;
                highest[i][r % 2] = high;
                f32 sum = total[i][r % 2] * shrunk;
#pragma unroll
                for (u32 j = 0; j < N; j++) {
#pragma unroll
                    for (u32 c = half; c < half + 2; c++) {
                        scores[i][j][c] = power_of_two(__fmaf_rn(scores[i][j][c], power, -level));
                        sum += scores[i][j][c];
                    }
                }
                total[i][r % 2] = sum;
#pragma unroll
                for (u32 j = 0; j < SIZE / 8; j++) mixtures[i][j][half] *= shrunk, mixtures[i][j][half + 1] *= shrunk;
            }
            mix_frames(mixtures, scores, keys + KEY_BYTES);
        }
        wait_for_copies();
        __syncthreads();
    }

    const u32 valid = left_of(row.valid, first + mine), count = left_of(row.frames, first + mine);
    const u64 begin = (u64)row.start + first + mine;
    f32 share[M][2];
#pragma unroll
    for (u32 r = 0; r < M * 2; r++) {
        const u32 i = r / 2, frame = r * 8 + lane / 4;
        f32 sum = total[i][r % 2];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        share[i][r % 2] = 1.0f / sum;
        if (lane % 4 == 0 && frame < count)
            sums[(begin + frame) * heads + head] = frame < valid ? highest[i][r % 2] * scale + logf(sum) : 0.0f;
    }
    store_frames(memory + mine * FRAME_BYTES, mixtures, share, out + begin * width + head * SIZE, width, valid, count);
}
