// Gradient clipping by global norm (Pascanu et al. 2013), first step: the sum of squares of each chunk of the
// gradients, a block per chunk.

constexpr u32 THREADS = 256;
constexpr u64 CHUNK = 32 * 1024;

extern "C" __global__ void __launch_bounds__(THREADS)
    sum_of_squares_f32(const f32* __restrict__ x, f32* __restrict__ sums, u64 n) {
    const u64 begin = blockIdx.x * CHUNK, end = min_of(begin + CHUNK, n);
    f32 lanes[4] = {}, rest = 0.0f;
    u64 done = begin;
    if (is_aligned(x)) {
        const u32 vectors = (u32)(end - begin) / 4, iterations = (vectors + THREADS - 1 - threadIdx.x) / THREADS;
        done = begin + vectors * 4;
        // The trip count is known before the loop, so that the loads of eight iterations are in flight at once.
#pragma unroll 8
        for (u32 iteration = 0; iteration < iterations; iteration++) {
            f32 loaded[4];
            load_vec(x + begin + (iteration * THREADS + threadIdx.x) * 4, loaded);
#pragma unroll
            for (u32 j = 0; j < 4; j++) lanes[j] += loaded[j] * loaded[j];
        }
    }
    for (u64 i = done + threadIdx.x; i < end; i += THREADS) rest += x[i] * x[i];
    f32 sum = block_sum(((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + rest);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
