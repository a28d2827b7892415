// Layer norm (Ba et al. 2016): a warp per frame. Its gradient: a thread block per block of frames, then a second kernel adds
// the partial sums of dgain and dbias.

template <u32 CHANNELS, typename T>
__device__ inline void forward(const T* x, const T* gain, const T* bias, T* out, f32* saved, u32 frames, u32 columns) {
    u32 frame = blockIdx.x * FORWARD_FRAMES + threadIdx.x / 32;
    if (frame >= frames) return;
    u64 at = (u64)frame * columns;
    normalize_frame<CHANNELS, T>(x + at, columns, {gain, bias, -0.f}, out + at, saved + 2 * (u64)frame);
}

template <u32 CHANNELS, typename T>
__device__ inline void backward(const T* x, const T* gain, const f32* saved, const T* dy, const T* dresidual,
                                bool has_dresidual, T* dx, f32* partial, u32 frames, u32 columns) {
    u32 first = blockIdx.x * FRAMES_PER_BLOCK;
    u32 count = first < frames ? min_of(FRAMES_PER_BLOCK, frames - first) : 0;
    FrameBlock<T> block = {x, dy, dresidual, has_dresidual, saved, dx, first, count, columns};
    frame_block_backward<CHANNELS, T>(block, {gain, nullptr, -0.f}, partial + 2 * (u64)blockIdx.x * columns);
}

#define KERNELS(CHANNELS, T)                                                                                   \
    extern "C" __global__ void __launch_bounds__(FORWARD_THREADS, (FORWARD_BLOCKS_PER_SM<CHANNELS, T>))        \
        layer_norm_##CHANNELS##_##T(const T* x, const T* gain, const T* bias, T* out, f32* saved, u32 frames,  \
                                    u32 columns) {                                                             \
        forward<CHANNELS, T>(x, gain, bias, out, saved, frames, columns);                                      \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(BACKWARD_THREADS<CHANNELS>, BACKWARD_BLOCKS_PER_SM<CHANNELS>) \
        layer_norm_gradient_##CHANNELS##_##T(const T* x, const T* gain, const f32* saved, const T* dy,         \
                                             const T* dresidual, T* dx, f32* partial, u32 frames, u32 columns, \
                                             u32 has_dresidual) {                                              \
        backward<CHANNELS, T>(x, gain, saved, dy, dresidual, has_dresidual, dx, partial, frames, columns);     \
    }

// dgain and dbias: the sums of the partial sums of all blocks, stored or added to the previous value. A thread block has 32
// columns, and 32 rows of threads that take the partial sums in turn. Its time is the latency of its last read, so the
// previous value is read together with the partial sums.
constexpr u32 SUM_LANES = 32;

extern "C" __global__ void __launch_bounds__(32 * SUM_LANES)
    layer_norm_sums_f32(const f32* partial, f32* dgain, f32* dbias, u32 blocks, u32 columns, u32 accumulate_dgain,
                        u32 accumulate_dbias) {
    __shared__ f32 sums[SUM_LANES][33];
    u32 both = 2 * columns, row = threadIdx.x / 32, column = threadIdx.x % 32, at = blockIdx.x * 32 + column;
    // In the end a warp has one column, and its first lane stores it.
    u32 mine = blockIdx.x * 32 + row;
    bool stores = column == 0 && mine < both, is_gain = mine < columns;
    f32* to = is_gain ? dgain + mine : dbias + (mine - columns);
    f32 previous = stores && (is_gain ? accumulate_dgain : accumulate_dbias) ? *to : 0.f;
    f32 sum = at < both ? sum_strided(partial + at, both, row, blocks, SUM_LANES) : 0.f;
    sums[row][column] = sum;
    __syncthreads();
    sum = warp_sum(sums[column][row]);
    if (stores) *to = previous + sum;
}

FOR_EVERY_SIZE(KERNELS)
