// Kernels for tests and benchmarks: patterns, checksums, and a delay that exposes stream races.

// Word i of the pattern of `seed`: the finalizer of SplitMix64 (Steele et al. 2014).
__device__ u32 pattern_word(u64 seed, u64 i) {
    u64 z = seed + (i + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (u32)((z ^ (z >> 31)) >> 32);
}

__device__ u64 block_sum(u64 mine, u64* shared) {
    shared[threadIdx.x] = mine;
    __syncthreads();
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    return shared[0];
}

extern "C" __global__ void fill_pattern(u32* out, u64 words, u64 seed) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += stride) out[i] = pattern_word(seed, i);
}

// Adds to *wrong the number of words that differ from the pattern. Integer addition is independent of the order of blocks.
extern "C" __global__ void count_wrong(const u32* data, u64* wrong, u64 words, u64 seed) {
    __shared__ u64 shared[256];
    u64 mine = 0, stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += stride) mine += data[i] != pattern_word(seed, i);
    u64 all = block_sum(mine, shared);
    if (threadIdx.x == 0 && all > 0) atomicAdd((unsigned long long*)wrong, (unsigned long long)all);
}

// out[0] = the sum of word i times (2i + 1), modulo 2^64. One block of 256 threads.
extern "C" __global__ void checksum(const u32* data, u64* out, u64 words) {
    __shared__ u64 shared[256];
    u64 mine = 0;
    for (u64 i = threadIdx.x; i < words; i += blockDim.x) mine += (u64)data[i] * (2 * i + 1);
    u64 all = block_sum(mine, shared);
    if (threadIdx.x == 0) out[0] = all;
}

// Keeps the stream busy for about `ns` nanoseconds.
extern "C" __global__ void delay(u64 ns) {
    u64 start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < ns);
}
