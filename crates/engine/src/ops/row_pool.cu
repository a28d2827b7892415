// Pooling over the valid frames of each row (sum or mean), and its adjoint, which broadcasts a vector to the frames of a
// row.

// The weight of a frame: 1 in a sum, 1 / frames in a mean.
__device__ inline f32 frame_weight(u32 frames, u32 mean) { return mean ? 1.f / (f32)max_of(frames, 1u) : 1.f; }

// Threads of a block along the channels and along the frames.
constexpr u32 ACROSS = 8, DOWN = 32;

// A thread block sums ACROSS · N channels of a row: each thread every 32nd frame, then one thread per channel those sums.
template <u32 N, typename T>
__device__ inline void sum_row(const T* x, Row row, u32 valid, T* out, u32 channels, u32 mean) {
    __shared__ f32 shared[DOWN][ACROSS * N];
    u32 first = blockIdx.x * ACROSS * N, lane = threadIdx.x / ACROSS, vector = threadIdx.x % ACROSS;
    if (first >= channels) return;
    u32 channel = first + vector * N;
    f32 sum[N] = {};
    if (channel < channels) {
#pragma unroll 4
        for (u32 frame = lane; frame < valid; frame += DOWN) {
            f32 v[N];
            load_elements(x + (u64)(row.start + frame) * channels + channel, v);
#pragma unroll
            for (u32 n = 0; n < N; n++) sum[n] += v[n];
        }
    }
#pragma unroll
    for (u32 n = 0; n < N; n++) shared[lane][vector * N + n] = sum[n];
    __syncthreads();
    u32 column = first + threadIdx.x;
    if (threadIdx.x < ACROSS * N && column < channels) {
        f32 total = 0.f;
        for (u32 i = 0; i < DOWN; i++) total += shared[i][threadIdx.x];
        out[(u64)blockIdx.y * channels + column] = T(total * frame_weight(valid, mean));
    }
}

template <u32 N, typename T>
__device__ inline void broadcast_row(const T* x, Row row, u32 valid, T* out, u32 channels, u32 mean) {
    f32 weight = frame_weight(valid, mean);
    each_element<N>(row.frames, channels, [&](u32 frame, u32 channel) {
        T* to = out + (u64)(row.start + frame) * channels + channel;
        f32 v[N];
        load_elements(x + (u64)blockIdx.y * channels + channel, v);
#pragma unroll
        for (u32 n = 0; n < N; n++) v[n] = frame < valid ? v[n] * weight : 0.f;
        store_elements(to, v);
    });
}

template <typename T>
__device__ inline void sum(const T* x, const u32* starts, const i32* lengths, T* out, u32 channels, u32 mean) {
    Row row(starts, blockIdx.y);
    u32 valid = clamp_length(lengths[blockIdx.y], row.frames);
    if (channels % VECTOR<T> == 0) {
        sum_row<VECTOR<T>>(x, row, valid, out, channels, mean);
    } else {
        sum_row<1>(x, row, valid, out, channels, mean);
    }
}

template <typename T>
__device__ inline void broadcast(const T* x, const u32* starts, const i32* lengths, T* out, u32 channels, u32 mean) {
    Row row(starts, blockIdx.y);
    u32 valid = clamp_length(lengths[blockIdx.y], row.frames);
    if (channels % VECTOR<T> == 0) {
        broadcast_row<VECTOR<T>>(x, row, valid, out, channels, mean);
    } else {
        broadcast_row<1>(x, row, valid, out, channels, mean);
    }
}

#define KERNELS(T)                                                                                             \
    extern "C" __global__ void __launch_bounds__(ACROSS * DOWN)                                                \
        row_sum_##T(const T* x, const u32* starts, const i32* lengths, T* out, u32 channels, u32 mean) {       \
        sum<T>(x, starts, lengths, out, channels, mean);                                                       \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(256)                                                          \
        row_broadcast_##T(const T* x, const u32* starts, const i32* lengths, T* out, u32 channels, u32 mean) { \
        broadcast<T>(x, starts, lengths, out, channels, mean);                                                 \
    }

KERNELS(f32)
KERNELS(bf16)
