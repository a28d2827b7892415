// Adaptive layer norm (AdaLN, Peebles & Xie 2023): layer norm with a scale and a shift per row of the batch, as FiLM
// (Perez et al. 2018) conditions features. A warp per frame; its gradient: a thread block per block of frames of a row.

// The affine transform of row blockIdx.y: its scales, to which 1 is added, and behind them its shifts.
template <typename T> __device__ inline Affine<T> affine_of_row(const T* scale_shift, u32 columns) {
    const T* scale = scale_shift + 2 * (u64)blockIdx.y * columns;
    return {scale, scale + columns, 1.f};
}

template <u32 CHANNELS, typename T>
__device__ inline void forward(const T* x, const T* scale_shift, const u32* starts, T* out, f32* saved, u32 columns) {
    Row row(starts, blockIdx.y);
    u32 in_row = blockIdx.x * FORWARD_FRAMES + threadIdx.x / 32;
    if (in_row >= row.frames) return;
    u32 frame = row.start + in_row;
    u64 at = (u64)frame * columns;
    normalize_frame<CHANNELS, T>(x + at, columns, affine_of_row(scale_shift, columns), out + at, saved + 2 * (u64)frame);
}

// The number of frames of block blockIdx.x of a row, and the first of them in the tensor.
__device__ inline u32 frames_of_block(Row row, u32& first) {
    u32 skipped = min_of(blockIdx.x * FRAMES_PER_BLOCK, row.frames);
    first = row.start + skipped;
    return min_of(row.frames - skipped, FRAMES_PER_BLOCK);
}

template <u32 CHANNELS, typename T>
__device__ inline void backward(const T* x, const T* scale_shift, const u32* starts, const f32* saved, const T* dy,
                                T* dx, f32* partial, u32 columns) {
    u32 first, frames = frames_of_block(Row(starts, blockIdx.y), first);
    FrameBlock<T> block = {x, dy, nullptr, false, saved, dx, first, frames, columns};
    u64 index = (u64)blockIdx.y * gridDim.x + blockIdx.x;
    frame_block_backward<CHANNELS, T>(block, affine_of_row(scale_shift, columns), partial + 2 * index * columns);
}

#define KERNELS(CHANNELS, T)                                                                                    \
    extern "C" __global__ void __launch_bounds__(FORWARD_THREADS, (FORWARD_BLOCKS_PER_SM<CHANNELS, T>))         \
        adaptive_norm_##CHANNELS##_##T(const T* x, const T* scale_shift, const u32* starts, T* out, f32* saved, \
                                       u32 rows, u32 columns) {                                                 \
        forward<CHANNELS, T>(x, scale_shift, starts, out, saved, columns);                                      \
    }                                                                                                           \
    extern "C" __global__ void __launch_bounds__(BACKWARD_THREADS<CHANNELS>, BACKWARD_BLOCKS_PER_SM<CHANNELS>)  \
        adaptive_norm_gradient_##CHANNELS##_##T(const T* x, const T* scale_shift, const u32* starts,            \
                                                const f32* saved, const T* dy, T* dx, f32* partial, u32 rows,   \
                                                u32 columns) {                                                  \
        backward<CHANNELS, T>(x, scale_shift, starts, saved, dy, dx, partial, columns);                         \
    }

FOR_EVERY_SIZE(KERNELS)
