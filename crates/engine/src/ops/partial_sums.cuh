// Sums of the partial sums that an earlier kernel has stored. Every sum has a fixed order, first within a thread and then a
// fixed tree, so results are deterministic.
//
// The time is the memory latency divided by the number of loads in flight. The compiler alone has one or two in flight per
// thread, however far it unrolls the loop, because it reuses registers and interleaves the additions. So the loads go to an
// array, and an empty asm statement makes all of them complete before the first addition.

constexpr u32 LOADS_IN_FLIGHT = 8;

// The sum of partial[i * stride] for i = first, first + lanes, ... below `count`.
__device__ inline f32 sum_strided(const f32* __restrict__ partial, u64 stride, u32 first, u32 count, u32 lanes) {
    f32 sum = 0.f;
    for (; first < count; first += LOADS_IN_FLIGHT * lanes) {
        f32 loaded[LOADS_IN_FLIGHT];
#pragma unroll
        for (u32 j = 0; j < LOADS_IN_FLIGHT; j++) {
            const u32 i = first + j * lanes;
            loaded[j] = i < count ? partial[i * stride] : 0.f;
        }
#pragma unroll
        for (u32 j = 0; j < LOADS_IN_FLIGHT; j++) asm volatile("" : "+f"(loaded[j]));
#pragma unroll
        for (u32 j = 0; j < LOADS_IN_FLIGHT; j++) sum += loaded[j];
    }
    return sum;
}

// A thread block that combines partial sums of 32 columns: each of 16 lanes adds every sixteenth one, then one thread adds
// the lanes.
constexpr u32 PARTIAL_LANES = 16, PARTIAL_THREADS = 32 * PARTIAL_LANES;

// The sum over i < count of partial[i * stride + column], in the threads of the first warp, a column each.
__device__ inline f32 sum_partials(const f32* partial, u32 count, u64 stride, bool in_bounds) {
    __shared__ f32 sums[PARTIAL_LANES][32];
    u32 lane = threadIdx.x / 32, column = threadIdx.x % 32;
    sums[lane][column] = in_bounds ? sum_strided(partial + column, stride, lane, count, PARTIAL_LANES) : 0.f;
    __syncthreads();
    f32 sum = 0.f;
    if (lane == 0) {
        for (u32 i = 0; i < PARTIAL_LANES; i++) sum += sums[i][column];
    }
    return sum;
}
