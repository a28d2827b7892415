// Adaptive norm: a warp for each frame of a row; its gradient: a block for each stretch of frames of a row.

// The scales of a row, which are what its gain is above 1, and behind them its shifts.
template <typename T> __device__ inline Affine<T> of_row(const T* scale_shift, u32 columns) {
    const T* scale = scale_shift + 2 * (u64)blockIdx.y * columns;
    return {scale, scale + columns, 1.f};
}

template <u32 CHANNELS, typename T>
__device__ inline void normalize(const T* x, const T* scale_shift, const u32* starts, T* out, f32* kept, u32 columns) {
    Row row(starts, blockIdx.y);
    u32 in_row = blockIdx.x * NORMALIZED + threadIdx.x / 32;
    if (in_row >= row.frames) return;
    u32 frame = row.start + in_row;
    u64 at = (u64)frame * columns;
    normalize_frame<CHANNELS, T>(x + at, columns, of_row(scale_shift, columns), out + at, kept + 2 * (u64)frame);
}

// Frames of stretch blockIdx.x of a row, and the first of them in the tensor.
__device__ inline u32 stretch_of(Row row, u32& first) {
    u32 skipped = min_of(blockIdx.x * FRAMES_OF_A_PIECE, row.frames);
    first = row.start + skipped;
    return min_of(row.frames - skipped, FRAMES_OF_A_PIECE);
}

template <u32 CHANNELS, typename T>
__device__ inline void gradient(const T* x, const T* scale_shift, const u32* starts, const f32* kept, const T* g, T* out,
                                f32* sums, u32 columns) {
    u32 first, frames = stretch_of(Row(starts, blockIdx.y), first);
    Stretch<T> stretch = {x, g, nullptr, false, kept, out, first, frames, columns};
    u64 piece = (u64)blockIdx.y * gridDim.x + blockIdx.x;
    stretch_gradient<CHANNELS, T>(stretch, of_row(scale_shift, columns), sums + 2 * piece * columns);
}

#define KERNELS(CHANNELS, T)                                                                                          \
    extern "C" __global__ void __launch_bounds__(NORMAL_THREADS, (NORMAL_BLOCKS<CHANNELS, T>))                        \
        adaptive_norm_##CHANNELS##_##T(const T* x, const T* scale_shift, const u32* starts, T* out, f32* kept, u32,   \
                                       u32 columns) {                                                                 \
        normalize<CHANNELS, T>(x, scale_shift, starts, out, kept, columns);                                           \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(GRADIENT_THREADS<CHANNELS>, GRADIENT_BLOCKS<CHANNELS>)               \
        adaptive_norm_gradient_##CHANNELS##_##T(const T* x, const T* scale_shift, const u32* starts, const f32* kept, \
                                                const T* g, T* out, f32* sums, u32, u32 columns) {                    \
        gradient<CHANNELS, T>(x, scale_shift, starts, kept, g, out, sums, columns);                                   \
    }

FOR_EVERY_SIZE(KERNELS)
