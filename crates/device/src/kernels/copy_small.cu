// Words between the host's page-locked memory and the card's, by one block and without an engine for copies.
extern "C" __global__ void copy_small(const u32* from, u32* to, u32 words) {
#pragma unroll 4
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i];
}
