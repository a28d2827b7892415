// One number of each channel per row, from its frames and to its frames.

// What the frames of a row are multiplied with: one, or one over how many there are.
__device__ inline f32 share_of(u32 frames, u32 mean) { return mean ? 1.f / (f32)max_of(frames, 1u) : 1.f; }

// Threads side by side, and frames at a time.
constexpr u32 ACROSS = 8, DOWN = 32;

// A block sums ACROSS N columns of a row: every 32nd frame first, then those sums.
template <u32 N, typename T>
__device__ inline void sum_row(const T* x, Row row, u32 valid, T* out, u32 channels, u32 mean) {
    __shared__ f32 shared[DOWN][ACROSS * N];
    u32 first = blockIdx.x * ACROSS * N, lane = threadIdx.x / ACROSS, unit = threadIdx.x % ACROSS;
    if (first >= channels) return;
    u32 channel = first + unit * N;
    f32 sum[N] = {};
    if (channel < channels) {
#pragma unroll 4
        for (u32 frame = lane; frame < valid; frame += DOWN) {
            f32 v[N];
            take(x + (u64)(row.start + frame) * channels + channel, v);
#pragma unroll
            for (u32 n = 0; n < N; n++) sum[n] += v[n];
        }
    }
#pragma unroll
    for (u32 n = 0; n < N; n++) shared[lane][unit * N + n] = sum[n];
    __syncthreads();
    u32 column = first + threadIdx.x;
    if (threadIdx.x < ACROSS * N && column < channels) {
        f32 total = 0.f;
        for (u32 i = 0; i < DOWN; i++) total += shared[i][threadIdx.x];
        out[(u64)blockIdx.y * channels + column] = T(total * share_of(valid, mean));
    }
}

template <u32 N, typename T>
__device__ inline void spread_row(const T* x, Row row, u32 valid, T* out, u32 channels, u32 mean) {
    f32 share = share_of(valid, mean);
    each_element<N>(row.frames, channels, [&](u32 frame, u32 channel) {
        T* to = out + (u64)(row.start + frame) * channels + channel;
        f32 v[N];
        take(x + (u64)blockIdx.y * channels + channel, v);
#pragma unroll
        for (u32 n = 0; n < N; n++) v[n] = frame < valid ? v[n] * share : 0.f;
        give(to, v);
    });
}

#define KERNELS(T)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(ACROSS * DOWN)                                                       \
        row_sum_##T(const T* x, const u32* starts, const i32* lengths, T* out, u32 channels, u32 mean) {              \
        Row row(starts, blockIdx.y);                                                                                  \
        u32 valid = filled(lengths[blockIdx.y], row.frames);                                                          \
        if (channels % WIDTH<T> == 0) {                                                                               \
            sum_row<WIDTH<T>>(x, row, valid, out, channels, mean);                                                    \
        } else {                                                                                                      \
            sum_row<1>(x, row, valid, out, channels, mean);                                                           \
        }                                                                                                             \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
        row_spread_##T(const T* x, const u32* starts, const i32* lengths, T* out, u32 channels, u32 mean) {           \
        Row row(starts, blockIdx.y);                                                                                  \
        u32 valid = filled(lengths[blockIdx.y], row.frames);                                                          \
        if (channels % WIDTH<T> == 0) {                                                                               \
            spread_row<WIDTH<T>>(x, row, valid, out, channels, mean);                                                 \
        } else {                                                                                                      \
            spread_row<1>(x, row, valid, out, channels, mean);                                                        \
        }                                                                                                             \
    }

KERNELS(f32)
KERNELS(bf16)
