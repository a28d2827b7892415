// Kernels that check memory: patterns, checksums, and a delay that exposes stream races.

// Number i of the sequence of `seed`: SplitMix64 (Steele et al. 2014).
__device__ u64 split_mix(u64 seed, u64 i) {
    u64 z = seed + (i + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// Word i of the pattern of `seed`.
__device__ u32 pattern_word(u64 seed, u64 i) {
    return (u32)(split_mix(seed, i) >> 32);
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

// The checksum is the sum over all words, modulo 2^64, of number i of the sequence whose seed is word i: one changed word
// always changes it. Each block writes its part to out[block], so that no memory has to be cleared first.
extern "C" __global__ void checksum(const u32* data, u64* out, u64 words) {
    __shared__ u64 shared[256];
    u64 mine = 0, stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += stride) mine += split_mix(data[i], i);
    u64 all = block_sum(mine, shared);
    if (threadIdx.x == 0) out[blockIdx.x] = all;
}

// Keeps the stream busy for about `ns` nanoseconds.
extern "C" __global__ void delay(u64 ns) {
    u64 start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < ns);
}
