// Group norm: a block for each group of channels of a row. The row is read three times, mostly from the cache.

constexpr u32 THREADS = 256;

// The channels of group blockIdx.x in row blockIdx.y.
struct Group {
    u64 first;  // Of the tensor, at the row's first frame.
    u32 channel, channels, columns, frames, valid;

    __device__ Group(const u32* starts, const i32* lengths, u32 columns, u32 groups) : columns(columns) {
        Row row(starts, blockIdx.y);
        channels = columns / groups;
        channel = blockIdx.x * channels;
        first = (u64)row.start * columns + channel;
        frames = row.frames;
        valid = filled(lengths[blockIdx.y], row.frames);
    }

    // One over the number of its valid elements.
    __device__ f32 share() const { return 1.f / max_of((f32)valid * (f32)channels, 1.f); }

    // Calls work(place in the tensor, channel of the group) for elements of frames from..to.
    template <u32 N, typename F> __device__ void each(u32 from, u32 to, F work) const {
        u32 of_a_frame = channels / N, count = (to - from) * of_a_frame;
        for (u32 i = threadIdx.x; i < count; i += THREADS) {
            u32 frame = i / of_a_frame, c = (i - frame * of_a_frame) * N;
            work(first + (u64)(from + frame) * columns + c, c);
        }
    }
};

template <u32 N, typename T>
__device__ inline void normalize(const T* x, const T* gain, const T* bias, const Group& group, T* out, f32* kept) {
    f32 sum = 0.f, squares = 0.f, share = group.share();
    group.each<N>(0, group.valid, [&](u64 at, u32) {
        f32 v[N];
        take(x + at, v);
#pragma unroll
        for (u32 n = 0; n < N; n++) sum += v[n];
    });
    f32 mean = block_total(sum) * share;
    group.each<N>(0, group.valid, [&](u64 at, u32) {
        f32 v[N];
        take(x + at, v);
#pragma unroll
        for (u32 n = 0; n < N; n++) squares += (v[n] - mean) * (v[n] - mean);
    });
    f32 scale = 1.f / sqrtf(block_total(squares) * share + 1e-5f);
    group.each<N>(0, group.valid, [&](u64 at, u32 c) {
        f32 v[N], g[N], b[N];
        take(x + at, v);
        take(gain + group.channel + c, g);
        take(bias + group.channel + c, b);
#pragma unroll
        for (u32 n = 0; n < N; n++) v[n] = (v[n] - mean) * (scale * g[n]) + b[n];
        give(out + at, v);
    });
    group.each<N>(group.valid, group.frames, [&](u64 at, u32) { clear<N>(out + at); });
    if (threadIdx.x == 0) {
        kept[0] = mean;
        kept[1] = scale;
    }
}

// The sums of g (x - mean) and of g of each channel, to `of_gain` and `of_bias`.
template <u32 N, typename T>
__device__ inline void sum_channels(const T* x, const T* gradient, const Group& group, f32 mean, f32 scale, f32* of_gain,
                                    f32* of_bias) {
    __shared__ f32 shared[2][N * THREADS];
    u32 units = group.channels / N, tile = min_of(units, THREADS), lanes = THREADS / tile;
    u32 lane = threadIdx.x / tile, unit = threadIdx.x % tile;
    for (u32 base = 0; base < units; base += tile) {
        f32 with_x[N] = {}, alone[N] = {};
        if (lane < lanes && base + unit < units) {
            for (u32 frame = lane; frame < group.valid; frame += lanes) {
                u64 at = group.first + (u64)frame * group.columns + (base + unit) * N;
                f32 v[N], g[N];
                take(x + at, v);
                take(gradient + at, g);
#pragma unroll
                for (u32 n = 0; n < N; n++) {
                    with_x[n] += g[n] * (v[n] - mean);
                    alone[n] += g[n];
                }
            }
        }
        if (lane < lanes) {
#pragma unroll
            for (u32 n = 0; n < N; n++) {
                shared[0][(lane * tile + unit) * N + n] = with_x[n];
                shared[1][(lane * tile + unit) * N + n] = alone[n];
            }
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < tile * N && base * N + i < group.channels; i += THREADS) {
            f32 gain = 0.f, bias = 0.f;
            for (u32 part = 0; part < lanes; part++) {
                gain += shared[0][part * tile * N + i];
                bias += shared[1][part * tile * N + i];
            }
            of_gain[base * N + i] = gain * scale;
            of_bias[base * N + i] = bias;
        }
        __syncthreads();
    }
}

template <u32 N, typename T>
__device__ inline void gradient_of(const T* x, const T* gain, const Group& group, const f32* kept, const T* gradient,
                                   T* out, f32* sums) {
    f32 mean = kept[0], scale = kept[1], share = group.share(), level = 0.f, tilt = 0.f;
    f32 *of_gain = sums + group.channel, *of_bias = of_gain + group.columns;
    gain += group.channel;
    sum_channels<N>(x, gradient, group, mean, scale, of_gain, of_bias);
    for (u32 c = threadIdx.x; c < group.channels; c += THREADS) {
        level += of_bias[c] * (f32)gain[c];
        tilt += of_gain[c] * (f32)gain[c];
    }
    level = block_total(level) * share * scale;
    tilt = block_total(tilt) * share * scale * scale;
    group.each<N>(0, group.valid, [&](u64 at, u32 c) {
        f32 v[N], g[N], slope[N];
        take(x + at, v);
        take(gradient + at, g);
        take(gain + c, slope);
#pragma unroll
        for (u32 n = 0; n < N; n++) v[n] = slope[n] * scale * g[n] - level - tilt * (v[n] - mean);
        give(out + at, v);
    });
    group.each<N>(group.valid, group.frames, [&](u64 at, u32) { clear<N>(out + at); });
}

#define KERNELS(T)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                             \
        group_norm_##T(const T* x, const T* gain, const T* bias, const u32* starts, const i32* lengths, T* out,       \
                       f32* kept, u32, u32 columns, u32 groups) {                                                     \
        Group group(starts, lengths, columns, groups);                                                                \
        kept += 2 * ((u64)blockIdx.y * groups + blockIdx.x);                                                          \
        if (group.channels % WIDTH<T> == 0) {                                                                         \
            normalize<WIDTH<T>>(x, gain, bias, group, out, kept);                                                     \
        } else {                                                                                                      \
            normalize<1>(x, gain, bias, group, out, kept);                                                            \
        }                                                                                                             \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                             \
        group_norm_gradient_##T(const T* x, const T* gain, const u32* starts, const i32* lengths, const f32* kept,    \
                                const T* gradient, T* out, f32* sums, u32, u32 columns, u32 groups) {                 \
        Group group(starts, lengths, columns, groups);                                                                \
        kept += 2 * ((u64)blockIdx.y * groups + blockIdx.x);                                                          \
        sums += 2 * (u64)blockIdx.y * columns;                                                                        \
        if (group.channels % WIDTH<T> == 0) {                                                                         \
            gradient_of<WIDTH<T>>(x, gain, group, kept, gradient, out, sums);                                         \
        } else {                                                                                                      \
            gradient_of<1>(x, gain, group, kept, gradient, out, sums);                                                \
        }                                                                                                             \
    }

KERNELS(f32)
KERNELS(bf16)
