// The last step of a norm's gradient: columns `first`.. of `partial` [rows, chunks, stride], summed over the chunks of each
// row.

template <typename T>
__device__ inline void combine(const f32* partial, T* out, u32 columns, u32 chunks, u32 stride, u32 first) {
    u32 row = blockIdx.y, column = blockIdx.x * 32 + threadIdx.x % 32;
    const f32* at = partial + (u64)row * chunks * stride + first + blockIdx.x * 32;
    f32 sum = sum_partials(at, chunks, stride, column < columns);
    if (threadIdx.x < 32 && column < columns) out[(u64)row * columns + column] = T(sum);
}

// A thread block per 32 columns of a row.
#define KERNELS(T)                                                                                               \
    extern "C" __global__ void __launch_bounds__(PARTIAL_THREADS)                                                \
        norm_combine_##T(const f32* partial, T* out, u32 rows, u32 columns, u32 chunks, u32 stride, u32 first) { \
        combine<T>(partial, out, columns, chunks, stride, first);                                                \
    }

KERNELS(f32)
KERNELS(bf16)
