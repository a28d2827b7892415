// Whole numbers as real ones.

#define KERNELS(T)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) to_float_##T(const i32* x, T* out, u64 elements) {              \
        for (u64 i = thread_index(); i < elements; i += thread_count()) out[i] = T((f32)x[i]);                        \
    }

KERNELS(f32)
KERNELS(bf16)
