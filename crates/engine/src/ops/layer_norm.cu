// Layer norm: a warp for each frame; its gradient: a block for each stretch of frames, then one for 32 columns of the sums.

template <u32 CHANNELS, typename T>
__device__ inline void gradient(const T* x, const T* gain, const f32* kept, const T* g, const T* more, bool has_more,
                                T* out, f32* sums, u32 frames, u32 columns) {
    u32 first = blockIdx.x * FRAMES_OF_A_PIECE;
    u32 count = first < frames ? min_of(FRAMES_OF_A_PIECE, frames - first) : 0;
    Stretch<T> stretch = {x, g, more, has_more, kept, out, first, count, columns};
    stretch_gradient<CHANNELS, T>(stretch, {gain, nullptr, -0.f}, sums + 2 * (u64)blockIdx.x * columns);
}

#define KERNELS(CHANNELS, T)                                                                                          \
    extern "C" __global__ void __launch_bounds__(NORMAL_THREADS, (NORMAL_BLOCKS<CHANNELS, T>))                        \
        layer_norm_##CHANNELS##_##T(const T* x, const T* gain, const T* bias, T* out, f32* kept, u32 frames,          \
                                    u32 columns) {                                                                    \
        u32 frame = blockIdx.x * NORMALIZED + threadIdx.x / 32;                                                       \
        if (frame >= frames) return;                                                                                  \
        u64 at = (u64)frame * columns;                                                                                \
        normalize_frame<CHANNELS, T>(x + at, columns, {gain, bias, -0.f}, out + at, kept + 2 * (u64)frame);           \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(GRADIENT_THREADS<CHANNELS>, GRADIENT_BLOCKS<CHANNELS>)               \
        layer_norm_gradient_##CHANNELS##_##T(const T* x, const T* gain, const f32* kept, const T* g, const T* more,   \
                                             T* out, f32* sums, u32 frames, u32 columns, u32 has_more) {              \
        gradient<CHANNELS, T>(x, gain, kept, g, more, has_more, out, sums, frames, columns);                          \
    }

// The pieces' sums for gain, and behind them those for bias, each to its place or added to what is there.
// A block has 32 columns, and 32 rows of threads that take the pieces by turns. What counts is how soon the last number
// is read: what is added to is read with them.
constexpr u32 SUM_LANES = 32;

extern "C" __global__ void __launch_bounds__(32 * SUM_LANES)
    layer_norm_sums_f32(const f32* partial, f32* of_gain, f32* of_bias, u32 pieces, u32 columns, u32 gain_adds,
                        u32 bias_adds) {
    __shared__ f32 sums[SUM_LANES][33];
    u32 both = 2 * columns, row = threadIdx.x / 32, column = threadIdx.x % 32, at = blockIdx.x * 32 + column;
    // A warp has one column in the end, and its first lane writes it.
    u32 mine = blockIdx.x * 32 + row;
    bool writes = column == 0 && mine < both, is_gain = mine < columns;
    f32* to = is_gain ? of_gain + mine : of_bias + (mine - columns);
    f32 before = writes && (is_gain ? gain_adds : bias_adds) ? *to : 0.f;
    f32 sum = at < both ? sum_of_pieces(partial + at, both, row, pieces, SUM_LANES) : 0.f;
    sums[row][column] = sum;
    __syncthreads();
    sum = warp_sum(sums[column][row]);
    if (writes) *to = before + sum;
}

FOR_EVERY_SIZE(KERNELS)
