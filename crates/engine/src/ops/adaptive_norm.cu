// Adaptive norm: a block for each stretch of frames of a row.

// The scales of a row, which are what its gain is above 1, and behind them its shifts.
template <typename T> __device__ inline Affine<T> of_row(const T* scale_shift, u32 columns) {
    const T* scale = scale_shift + 2 * (u64)blockIdx.y * columns;
    return {scale, scale + columns, 1.f};
}

// Frames of stretch blockIdx.x of a row, and the first of them in the tensor.
__device__ inline u32 stretch_of(Row row, u64& first) {
    u32 skipped = min_of(blockIdx.x * FRAMES_OF_A_PIECE, row.frames);
    first = row.start + skipped;
    return min_of(row.frames - skipped, FRAMES_OF_A_PIECE);
}

template <u32 CHANNELS, typename T>
__device__ inline void normalize(const T* x, const T* scale_shift, const u32* starts, T* out, f32* kept, u32 columns) {
    u64 first;
    u32 frames = stretch_of(Row(starts, blockIdx.y), first);
    Affine<T> to = of_row(scale_shift, columns);
    for (u32 i = threadIdx.x / 32; i < frames; i += NORM_WARPS) {
        u64 frame = first + i;
        normalize_frame<CHANNELS, T>(x + frame * columns, columns, to, out + frame * columns, kept + 2 * frame);
    }
}

template <u32 CHANNELS, typename T>
__device__ inline void gradient(const T* x, const T* scale_shift, const u32* starts, const f32* kept, const T* g, T* out,
                                f32* sums, u32 columns) {
    u64 first;
    u32 frames = stretch_of(Row(starts, blockIdx.y), first);
    u64 at = first * columns;
    Stretch<T> stretch = {x + at, g + at, nullptr, kept + 2 * first, out + at, frames, columns};
    u64 piece = (u64)blockIdx.y * gridDim.x + blockIdx.x;
    stretch_gradient<CHANNELS, T>(stretch, of_row(scale_shift, columns), sums + 2 * piece * columns);
}

#define KERNELS(CHANNELS, T)                                                                                          \
    extern "C" __global__ void __launch_bounds__(NORM_THREADS)                                                        \
        adaptive_norm_##CHANNELS##_##T(const T* x, const T* scale_shift, const u32* starts, T* out, f32* kept, u32,   \
                                       u32 columns) {                                                                 \
        normalize<CHANNELS, T>(x, scale_shift, starts, out, kept, columns);                                           \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(NORM_THREADS, gradients<T>(CHANNELS))                                \
        adaptive_norm_gradient_##CHANNELS##_##T(const T* x, const T* scale_shift, const u32* starts, const f32* kept, \
                                                const T* g, T* out, f32* sums, u32, u32 columns) {                    \
        gradient<CHANNELS, T>(x, scale_shift, starts, kept, g, out, sums, columns);                                   \
    }

KERNELS(256, f32)
KERNELS(512, f32)
KERNELS(768, f32)
KERNELS(1024, f32)
KERNELS(other, f32)
KERNELS(256, bf16)
KERNELS(512, bf16)
KERNELS(768, bf16)
KERNELS(1024, bf16)
KERNELS(other, bf16)
