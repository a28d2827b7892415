// Depthwise convolution over the frames of ragged rows, and its gradients.

// Frames per thread, which loads a weight once for all of them.
constexpr u32 FRAMES = 8;
// Output frames per partial sum of the weight's gradient, as in depthwise.rs.
constexpr u32 FRAMES_PER_CHUNK = 128;

// sum[frame] += weight[channel, tap] x[at(frame, tap)], if at() is below `length`; N channels and FRAMES frames.
template <u32 N, typename T, typename F>
__device__ inline void accumulate_taps(f32 (&sum)[FRAMES][N], const T* x, const T* weight, u32 channels, u32 channel,
                                       u32 taps, u32 length, F at) {
    for (u32 tap = 0; tap < taps; tap++) {
        f32 w[N];
#pragma unroll
        for (u32 n = 0; n < N; n++) w[n] = (f32)weight[(u64)(channel + n) * taps + tap];
#pragma unroll
        for (u32 f = 0; f < FRAMES; f++) {
            u32 frame = at(f, tap);
            if (frame >= length) continue;
            f32 v[N];
            load_elements(x + (u64)frame * channels + channel, v);
#pragma unroll
            for (u32 n = 0; n < N; n++) sum[f][n] += w[n] * v[n];
        }
    }
}

// Calls work(first frame, channel) for groups of FRAMES frames and N channels.
template <u32 N, typename F> __device__ inline void each_group(u32 frames, u32 channels, F work) {
    each_element<N>((frames + FRAMES - 1) / FRAMES, channels, [&](u32 group, u32 channel) {
        work(group * FRAMES, channel);
    });
}

template <u32 N, typename T>
__device__ inline void store_frames(const f32 (&sum)[FRAMES][N], u32 first, u32 frames, T* out, u32 channels) {
#pragma unroll
    for (u32 f = 0; f < FRAMES; f++)
        if (first + f < frames) store_elements(out + (u64)(first + f) * channels, sum[f]);
}

template <u32 N, typename T>
__device__ inline void forward(const T* x, const T* weight, const T* bias, Row row, Row out_row, u32 length, T* out,
                               u32 channels, ConvWindow window) {
    u32 out_length = window.output_length(length);
    each_group<N>(out_row.frames, channels, [&](u32 first, u32 channel) {
        f32 sum[FRAMES][N], start[N];
        load_elements(bias + channel, start);
#pragma unroll
        for (u32 f = 0; f < FRAMES; f++)
#pragma unroll
            for (u32 n = 0; n < N; n++) sum[f][n] = start[n];
        auto at = [&](u32 f, u32 tap) {
            return first + f < out_length ? window.input_frame(first + f, tap) : 0xffffffffu;
        };
        accumulate_taps(sum, x + (u64)row.start * channels, weight, channels, channel, window.kernel, length, at);
        store_frames(sum, first, out_row.frames, out + (u64)out_row.start * channels + channel, channels);
    });
}

template <u32 N, typename T>
__device__ inline void gradient_of_input(const T* gradient, const T* weight, Row row, Row out_row, u32 length, T* out,
                                         u32 channels, ConvWindow window) {
    u32 out_length = window.output_length(length);
    each_group<N>(row.frames, channels, [&](u32 first, u32 channel) {
        f32 sum[FRAMES][N] = {};
        auto at = [&](u32 f, u32 tap) {
            return first + f < length ? window.output_frame(first + f, tap) : 0xffffffffu;
        };
        accumulate_taps(sum, gradient + (u64)out_row.start * channels, weight, channels, channel, window.kernel,
                        out_length, at);
        store_frames(sum, first, row.frames, out + (u64)row.start * channels + channel, channels);
    });
}

// Partial sum blockIdx.y of the weight's gradient for 32 channels, as [taps, channels]. Eight frames and eight taps at
// a time, whose sums stay in registers.
template <typename T>
__device__ inline void gradient_of_weight(const T* gradient, const T* x, const u32* starts, const u32* out_starts,
                                          const i32* lengths, f32* partial, u32 channels, ConvWindow window, u32 rows) {
    constexpr u32 TAPS = 8, LANES = 8;
    // For each frame of the chunk: its index in its row, the first frame of that row in x, and the row's valid length.
    __shared__ u32 frame_in_row[FRAMES_PER_CHUNK], row_start[FRAMES_PER_CHUNK], row_length[FRAMES_PER_CHUNK];
    __shared__ f32 shared[LANES][TAPS][32];
    u32 total = out_starts[rows], first = blockIdx.y * FRAMES_PER_CHUNK;
    u32 count = first < total ? min_of(FRAMES_PER_CHUNK, total - first) : 0;
    if (threadIdx.x < count) {
        u32 row = row_of(out_starts, rows, first + threadIdx.x), t = first + threadIdx.x - out_starts[row];
        u32 length = clamp_length(lengths[row], starts[row + 1] - starts[row]);
        frame_in_row[threadIdx.x] = t;
        row_start[threadIdx.x] = starts[row];
        row_length[threadIdx.x] = t < window.output_length(length) ? length : 0;
    }
    __syncthreads();
    u32 lane = threadIdx.x / 32, i = threadIdx.x % 32, channel = blockIdx.x * 32 + i;
    for (u32 tap = 0; tap < window.kernel; tap += TAPS) {
        f32 sum[TAPS] = {};
        for (u32 f = lane; f < count && channel < channels; f += LANES) {
            u32 length = row_length[f];
            f32 g = (f32)gradient[(u64)(first + f) * channels + channel];
#pragma unroll
            for (u32 j = 0; j < TAPS; j++) {
                u32 frame = window.input_frame(frame_in_row[f], tap + j);
                if (tap + j < window.kernel && frame < length)
                    sum[j] += g * (f32)x[(u64)(row_start[f] + frame) * channels + channel];
            }
        }
#pragma unroll
        for (u32 j = 0; j < TAPS; j++) shared[lane][j][i] = sum[j];
        __syncthreads();
        // Each warp sums one tap.
        f32 all = 0.f;
        for (u32 l = 0; l < LANES; l++) all += shared[l][lane][i];
        if (tap + lane < window.kernel && channel < channels)
            partial[((u64)blockIdx.y * window.kernel + tap + lane) * channels + channel] = all;
        __syncthreads();
    }
}

template <typename T>
__device__ inline void forward_row(const T* x, const T* weight, const T* bias, const u32* starts, const u32* out_starts,
                                   const i32* lengths, T* out, u32 channels, ConvWindow window) {
    Row row(starts, blockIdx.y), out_row(out_starts, blockIdx.y);
    u32 length = clamp_length(lengths[blockIdx.y], row.frames);
    if (channels % VECTOR<T> == 0) {
        forward<VECTOR<T>>(x, weight, bias, row, out_row, length, out, channels, window);
    } else {
        forward<1>(x, weight, bias, row, out_row, length, out, channels, window);
    }
}

template <typename T>
__device__ inline void gradient_of_row(const T* gradient, const T* weight, const u32* starts, const u32* out_starts,
                                       const i32* lengths, T* out, u32 channels, ConvWindow window) {
    Row row(starts, blockIdx.y), out_row(out_starts, blockIdx.y);
    u32 length = clamp_length(lengths[blockIdx.y], row.frames);
    if (channels % VECTOR<T> == 0) {
        gradient_of_input<VECTOR<T>>(gradient, weight, row, out_row, length, out, channels, window);
    } else {
        gradient_of_input<1>(gradient, weight, row, out_row, length, out, channels, window);
    }
}

#define KERNELS(T)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(256)                                                                \
        depthwise_##T(const T* x, const T* weight, const T* bias, const u32* starts, const u32* out_starts,          \
                      const i32* lengths, T* out, u32 channels, u32 kernel, u32 stride, u32 dilation, u32 padding) { \
        forward_row<T>(x, weight, bias, starts, out_starts, lengths, out, channels,                                  \
                       {kernel, stride, dilation, padding});                                                         \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(256)                                                                \
        depthwise_gradient_##T(const T* gradient, const T* weight, const u32* starts, const u32* out_starts,         \
                               const i32* lengths, T* out, u32 channels, u32 kernel, u32 stride, u32 dilation,       \
                               u32 padding) {                                                                        \
        gradient_of_row<T>(gradient, weight, starts, out_starts, lengths, out, channels,                             \
                           {kernel, stride, dilation, padding});                                                     \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(256)                                                                \
        depthwise_weight_gradient_##T(const T* gradient, const T* x, const u32* starts, const u32* out_starts,       \
                                      const i32* lengths, f32* partial, u32 channels, u32 kernel, u32 stride,        \
                                      u32 dilation, u32 padding, u32 rows) {                                         \
        gradient_of_weight<T>(gradient, x, starts, out_starts, lengths, partial, channels,                           \
                              {kernel, stride, dilation, padding}, rows);                                            \
    }

KERNELS(f32)
KERNELS(bf16)

// Adds the partial sums [chunks, taps, channels] to the gradient [channels, taps]. A block per 32 elements.
extern "C" __global__ void __launch_bounds__(PARTIAL_THREADS)
    depthwise_combine_f32(const f32* partial, f32* out, u32 chunks, u32 channels, u32 taps, u32 accumulate) {
    u32 at = blockIdx.x * 32 + threadIdx.x % 32, elements = channels * taps;
    f32 sum = sum_partials(partial + blockIdx.x * 32, chunks, elements, at < elements);
    if (threadIdx.x < 32 && at < elements) {
        u32 tap = at / channels;
        f32* to = out + (u64)(at - tap * channels) * taps + tap;
        *to = accumulate ? *to + sum : sum;
    }
}
