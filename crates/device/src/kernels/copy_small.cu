// Copies words between page-locked host memory and device memory by one block, without a copy engine: a small copy then
// does not wait behind a bulk copy.
extern "C" __global__ void copy_small(const u32* from, u32* to, u32 words) {
#pragma unroll 4
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i];
}
