// Conversion of integers to floating point.

template <typename T> __device__ inline void convert(const i32* x, T* out, u64 elements) {
    for (u64 i = thread_index(); i < elements; i += thread_count()) out[i] = T((f32)x[i]);
}

#define KERNELS(T)                                                                                       \
    extern "C" __global__ void __launch_bounds__(256) to_float_##T(const i32* x, T* out, u64 elements) { \
        convert<T>(x, out, elements);                                                                    \
    }

KERNELS(f32)
KERNELS(bf16)
