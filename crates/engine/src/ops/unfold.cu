// im2col (unfold): the windows of a convolution as rows of a matrix; and col2im (fold), its adjoint, which adds where
// windows overlap.

template <u32 N, typename T>
__device__ inline void unfold(const T* x, Row row, Row out_row, u32 length, T* out, u32 channels, ConvWindow window) {
    u32 width = window.kernel * channels, out_length = window.output_length(length);
    each_element<N>(out_row.frames, width, [&](u32 t, u32 i) {
        u32 tap = i / channels, frame = window.input_frame(t, tap);
        T* to = out + (u64)(out_row.start + t) * width + i;
        bool in_bounds = t < out_length && frame < length;
        if (in_bounds) {
            copy_elements<N>(x + (u64)(row.start + frame) * channels + (i - tap * channels), to);
        } else {
            zero_elements<N>(to);
        }
    });
}

template <u32 N, typename T>
__device__ inline void fold(const T* x, Row row, Row out_row, u32 length, T* out, u32 channels, ConvWindow window) {
    u32 width = window.kernel * channels, out_length = window.output_length(length);
    each_element<N>(row.frames, channels, [&](u32 frame, u32 channel) {
        f32 sum[N] = {};
        for (u32 tap = 0; tap < window.kernel && frame < length; tap++) {
            u32 t = window.output_frame(frame, tap);
            if (t >= out_length) continue;
            f32 v[N];
            load_elements(x + (u64)(out_row.start + t) * width + tap * channels + channel, v);
#pragma unroll
            for (u32 n = 0; n < N; n++) sum[n] += v[n];
        }
        store_elements(out + (u64)(row.start + frame) * channels + channel, sum);
    });
}

template <typename T>
__device__ inline void unfold_row(const T* x, const u32* starts, const u32* out_starts, const i32* lengths, T* out,
                                  u32 channels, ConvWindow window) {
    Row row(starts, blockIdx.y), out_row(out_starts, blockIdx.y);
    u32 length = clamp_length(lengths[blockIdx.y], row.frames);
    if (channels % VECTOR<T> == 0) {
        unfold<VECTOR<T>>(x, row, out_row, length, out, channels, window);
    } else {
        unfold<1>(x, row, out_row, length, out, channels, window);
    }
}

template <typename T>
__device__ inline void fold_row(const T* x, const u32* starts, const u32* out_starts, const i32* lengths, T* out,
                                u32 channels, ConvWindow window) {
    Row row(starts, blockIdx.y), out_row(out_starts, blockIdx.y);
    u32 length = clamp_length(lengths[blockIdx.y], row.frames);
    if (channels % VECTOR<T> == 0) {
        fold<VECTOR<T>>(x, row, out_row, length, out, channels, window);
    } else {
        fold<1>(x, row, out_row, length, out, channels, window);
    }
}

#define KERNEL(T, NAME)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256, 4)                                                           \
        NAME##_##T(const T* x, const u32* starts, const u32* out_starts, const i32* lengths, T* out, u32 channels, \
                   u32 kernel, u32 stride, u32 dilation, u32 padding) {                                            \
        NAME##_row<T>(x, starts, out_starts, lengths, out, channels, {kernel, stride, dilation, padding});         \
    }

KERNEL(f32, unfold)
KERNEL(bf16, unfold)
KERNEL(f32, fold)
KERNEL(bf16, fold)
