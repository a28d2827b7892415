// The rehearsal's own work: a batch made from an upload, rows read from a batch, and matrix products.

// Word i of a batch depends on its position and on a word of the upload: a stale or torn upload changes it.
extern "C" __global__ void make_batch(const u32* upload, u32* batch, u64 upload_words, u64 batch_words) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < batch_words; i += stride)
        batch[i] = upload[i % upload_words] * 2654435761u + (u32)i;
}

// Small reals in [-1, 1) from the words of a batch.
template <typename T>
__device__ void rows_from_batch(const u32* batch, T* rows, u64 count) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) rows[i] = T((float)(i32)batch[i] * 4.656612873077393e-10f);
}

// out = in * weights, all row-major; f32 sums. One thread per element of out, 16 x 16 tiles.
template <typename T>
__device__ void product(const T* in, const T* weights, T* out, u32 rows, u32 width) {
    __shared__ float a[16][17], b[16][17];
    u32 tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    u32 row = blockIdx.y * 16 + ty, column = blockIdx.x * 16 + tx;
    float sum = 0.f;
    for (u32 from = 0; from < width; from += 16) {
        bool in_a = row < rows && from + tx < width, in_b = from + ty < width && column < width;
        a[ty][tx] = in_a ? (float)in[(u64)row * width + from + tx] : 0.f;
        b[ty][tx] = in_b ? (float)weights[(u64)(from + ty) * width + column] : 0.f;
        __syncthreads();
        for (u32 k = 0; k < 16; k++) sum += a[ty][k] * b[k][tx];
        __syncthreads();
    }
    if (row < rows && column < width) out[(u64)row * width + column] = T(sum);
}

extern "C" __global__ void rows_f32(const u32* batch, float* rows, u64 count) { rows_from_batch(batch, rows, count); }
extern "C" __global__ void rows_bf16(const u32* batch, bf16* rows, u64 count) { rows_from_batch(batch, rows, count); }
extern "C" __global__ void product_f32(const float* in, const float* weights, float* out, u32 rows, u32 width) {
    product(in, weights, out, rows, width);
}
extern "C" __global__ void product_bf16(const bf16* in, const bf16* weights, bf16* out, u32 rows, u32 width) {
    product(in, weights, out, rows, width);
}
