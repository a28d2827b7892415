// A tiled GEMM in shared memory that keeps a card busy: the steps of `bench pipeline` are made of it.

// out = x * weights, all row-major, f32 accumulators. One thread per element of out, 16 x 16 tiles.
extern "C" __global__ void gemm_bf16(const bf16* x, const bf16* weights, bf16* out, u32 rows, u32 width) {
    __shared__ float a[16][17], b[16][17];
    u32 tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    u32 row = blockIdx.y * 16 + ty, column = blockIdx.x * 16 + tx;
    float sum = 0.f;
    for (u32 from = 0; from < width; from += 16) {
        bool in_a = row < rows && from + tx < width, in_b = from + ty < width && column < width;
        a[ty][tx] = in_a ? (float)x[(u64)row * width + from + tx] : 0.f;
        b[ty][tx] = in_b ? (float)weights[(u64)(from + ty) * width + column] : 0.f;
        __syncthreads();
        for (u32 k = 0; k < 16; k++) sum += a[ty][k] * b[k][tx];
        __syncthreads();
    }
    if (row < rows && column < width) out[(u64)row * width + column] = bf16(sum);
}
