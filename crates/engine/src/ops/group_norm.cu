// Group norm (Wu & He 2018) over the valid frames of a row: a thread block per group of channels. The row is read three
// times, mostly from the cache.

constexpr u32 THREADS = 256;

// Group blockIdx.x of channels in row blockIdx.y.
struct Group {
    u64 first;  // The index of its first element in the tensor.
    u32 channel, channels, columns, frames, valid;

    __device__ Group(const u32* starts, const i32* lengths, u32 columns, u32 groups) : columns(columns) {
        Row row(starts, blockIdx.y);
        channels = columns / groups;
        channel = blockIdx.x * channels;
        first = (u64)row.start * columns + channel;
        frames = row.frames;
        valid = clamp_length(lengths[blockIdx.y], row.frames);
    }

    // 1 / the number of its valid elements.
    __device__ f32 inverse_count() const { return 1.f / max_of((f32)valid * (f32)channels, 1.f); }

    // Calls work(index in the tensor, channel of the group) for the elements of frames from..to.
    template <u32 N, typename F> __device__ void each(u32 from, u32 to, F work) const {
        u32 vectors = channels / N, count = (to - from) * vectors;
        for (u32 i = threadIdx.x; i < count; i += THREADS) {
            u32 frame = i / vectors, c = (i - frame * vectors) * N;
            work(first + (u64)(from + frame) * columns + c, c);
        }
    }
};

template <u32 N, typename T>
__device__ inline void normalize(const T* x, const T* gain, const T* bias, const Group& group, T* out, f32* saved) {
    f32 sum = 0.f, squares = 0.f, inverse_count = group.inverse_count();
    group.each<N>(0, group.valid, [&](u64 at, u32) {
        f32 v[N];
        load_elements(x + at, v);
#pragma unroll
        for (u32 n = 0; n < N; n++) sum += v[n];
    });
    f32 mean = block_sum_all(sum) * inverse_count;
    group.each<N>(0, group.valid, [&](u64 at, u32) {
        f32 v[N];
        load_elements(x + at, v);
#pragma unroll
        for (u32 n = 0; n < N; n++) squares += (v[n] - mean) * (v[n] - mean);
    });
    f32 rstd = 1.f / sqrtf(block_sum_all(squares) * inverse_count + 1e-5f);
    group.each<N>(0, group.valid, [&](u64 at, u32 c) {
        f32 v[N], g[N], b[N];
        load_elements(x + at, v);
        load_elements(gain + group.channel + c, g);
        load_elements(bias + group.channel + c, b);
#pragma unroll
        for (u32 n = 0; n < N; n++) v[n] = (v[n] - mean) * (rstd * g[n]) + b[n];
        store_elements(out + at, v);
    });
    group.each<N>(group.valid, group.frames, [&](u64 at, u32) { zero_elements<N>(out + at); });
    if (threadIdx.x == 0) {
        saved[0] = mean;
        saved[1] = rstd;
    }
}

// Sums over the frames, for each channel: dgain = Σ dy (x - mean) · rstd, and dbias = Σ dy.
template <u32 N, typename T>
__device__ inline void sum_channels(const T* x, const T* dy, const Group& group, f32 mean, f32 rstd, f32* dgain,
                                    f32* dbias) {
    __shared__ f32 shared[2][N * THREADS];
    u32 vectors = group.channels / N, tile = min_of(vectors, THREADS), lanes = THREADS / tile;
    u32 lane = threadIdx.x / tile, vector = threadIdx.x % tile;
    for (u32 base = 0; base < vectors; base += tile) {
        f32 gain_sums[N] = {}, bias_sums[N] = {};
        if (lane < lanes && base + vector < vectors) {
            for (u32 frame = lane; frame < group.valid; frame += lanes) {
                u64 at = group.first + (u64)frame * group.columns + (base + vector) * N;
                f32 v[N], g[N];
                load_elements(x + at, v);
                load_elements(dy + at, g);
#pragma unroll
                for (u32 n = 0; n < N; n++) {
                    gain_sums[n] += g[n] * (v[n] - mean);
                    bias_sums[n] += g[n];
                }
            }
        }
        if (lane < lanes) {
#pragma unroll
            for (u32 n = 0; n < N; n++) {
                shared[0][(lane * tile + vector) * N + n] = gain_sums[n];
                shared[1][(lane * tile + vector) * N + n] = bias_sums[n];
            }
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < tile * N && base * N + i < group.channels; i += THREADS) {
            f32 gain = 0.f, bias = 0.f;
            for (u32 row = 0; row < lanes; row++) {
                gain += shared[0][row * tile * N + i];
                bias += shared[1][row * tile * N + i];
            }
            dgain[base * N + i] = gain * rstd;
            dbias[base * N + i] = bias;
        }
        __syncthreads();
    }
}

template <u32 N, typename T>
__device__ inline void group_backward(const T* x, const T* gain, const Group& group, const f32* saved, const T* dy,
                                      T* dx, f32* partial) {
    f32 mean = saved[0], rstd = saved[1], inverse_count = group.inverse_count();
    f32 dnorm_mean = 0.f, dnorm_norm_mean = 0.f;
    f32 *dgain = partial + group.channel, *dbias = dgain + group.columns;
    gain += group.channel;
    sum_channels<N>(x, dy, group, mean, rstd, dgain, dbias);
    for (u32 c = threadIdx.x; c < group.channels; c += THREADS) {
        dnorm_mean += dbias[c] * (f32)gain[c];
        dnorm_norm_mean += dgain[c] * (f32)gain[c];
    }
    // Both with the factors that every element of the group shares.
    dnorm_mean = block_sum_all(dnorm_mean) * inverse_count * rstd;
    dnorm_norm_mean = block_sum_all(dnorm_norm_mean) * inverse_count * rstd * rstd;
    group.each<N>(0, group.valid, [&](u64 at, u32 c) {
        f32 v[N], g[N], gains[N];
        load_elements(x + at, v);
        load_elements(dy + at, g);
        load_elements(gain + c, gains);
#pragma unroll
        for (u32 n = 0; n < N; n++) v[n] = gains[n] * rstd * g[n] - dnorm_mean - dnorm_norm_mean * (v[n] - mean);
        store_elements(dx + at, v);
    });
    group.each<N>(group.valid, group.frames, [&](u64 at, u32) { zero_elements<N>(dx + at); });
}

template <typename T>
__device__ inline void forward(const T* x, const T* gain, const T* bias, const u32* starts, const i32* lengths, T* out,
                               f32* saved, u32 columns, u32 groups) {
    Group group(starts, lengths, columns, groups);
    saved += 2 * ((u64)blockIdx.y * groups + blockIdx.x);
    if (group.channels % VECTOR<T> == 0) {
        normalize<VECTOR<T>>(x, gain, bias, group, out, saved);
    } else {
        normalize<1>(x, gain, bias, group, out, saved);
    }
}

template <typename T>
__device__ inline void backward(const T* x, const T* gain, const u32* starts, const i32* lengths, const f32* saved,
                                const T* dy, T* dx, f32* partial, u32 columns, u32 groups) {
    Group group(starts, lengths, columns, groups);
    saved += 2 * ((u64)blockIdx.y * groups + blockIdx.x);
    partial += 2 * (u64)blockIdx.y * columns;
    if (group.channels % VECTOR<T> == 0) {
        group_backward<VECTOR<T>>(x, gain, group, saved, dy, dx, partial);
    } else {
        group_backward<1>(x, gain, group, saved, dy, dx, partial);
    }
}

#define KERNELS(T)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                           \
        group_norm_##T(const T* x, const T* gain, const T* bias, const u32* starts, const i32* lengths, T* out,     \
                       f32* saved, u32 rows, u32 columns, u32 groups) {                                             \
        forward<T>(x, gain, bias, starts, lengths, out, saved, columns, groups);                                    \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                           \
        group_norm_gradient_##T(const T* x, const T* gain, const u32* starts, const i32* lengths, const f32* saved, \
                                const T* dy, T* dx, f32* partial, u32 rows, u32 columns, u32 groups) {              \
        backward<T>(x, gain, starts, lengths, saved, dy, dx, partial, columns, groups);                             \
    }

KERNELS(f32)
KERNELS(bf16)
