// The sum of squares of every piece of the gradients: a block has a piece.

constexpr u32 THREADS = 256;
constexpr u64 PIECE = 32 * 1024;

extern "C" __global__ void __launch_bounds__(THREADS)
    squared_pieces_f32(const f32* __restrict__ x, f32* __restrict__ sums, u64 n) {
    const u64 begin = blockIdx.x * PIECE, end = min_of(begin + PIECE, n);
    f32 lanes[4] = {}, rest = 0.0f;
    u64 done = begin;
    if (is_aligned(x)) {
        const u32 groups = (u32)(end - begin) / 4, rounds = (groups + THREADS - 1 - threadIdx.x) / THREADS;
        done = begin + groups * 4;
        // Rounds are counted beforehand: so the loads of eight are issued at once.
#pragma unroll 8
        for (u32 round = 0; round < rounds; round++) {
            f32 here[4];
            load_vec(x + begin + (round * THREADS + threadIdx.x) * 4, here);
#pragma unroll
            for (u32 j = 0; j < 4; j++) lanes[j] += here[j] * here[j];
        }
    }
    for (u64 i = done + threadIdx.x; i < end; i += THREADS) rest += x[i] * x[i];
    f32 sum = block_sum(((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + rest);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
