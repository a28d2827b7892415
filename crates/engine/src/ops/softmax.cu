// Softmax: a warp for each row. The row is read three times, from the first-level cache after the first.

template <u32 N, typename F> __device__ inline void each_chunk(u32 columns, F work) {
    for (u32 i = threadIdx.x % 32 * N; i < columns; i += 32 * N) work(i);
}

// Of the first `count` columns; the others become 0.
template <u32 N, typename T> __device__ inline void softmax_row(const T* x, u32 columns, u32 count, T* out) {
    f32 highest = __int_as_float(0xff800000), sum = 0.f, v[N];
    each_chunk<N>(count, [&](u32 i) {
        take(x + i, v);
#pragma unroll
        for (u32 n = 0; n < N; n++)
            if (i + n < count) highest = fmaxf(highest, v[n]);
    });
    highest = warp_max(highest);
    each_chunk<N>(count, [&](u32 i) {
        take(x + i, v);
#pragma unroll
        for (u32 n = 0; n < N; n++)
            if (i + n < count) sum += expf(v[n] - highest);
    });
    f32 share = 1.f / warp_sum(sum);
    each_chunk<N>(columns, [&](u32 i) {
        take(x + i, v);
#pragma unroll
        for (u32 n = 0; n < N; n++) v[n] = i + n < count ? expf(v[n] - highest) * share : 0.f;
        give(out + i, v);
    });
}

template <u32 N, typename T>
__device__ inline void row_gradient(const T* softmax, const T* gradient, u32 columns, T* out) {
    f32 level = 0.f, p[N], g[N];
    each_chunk<N>(columns, [&](u32 i) {
        take(softmax + i, p);
        take(gradient + i, g);
#pragma unroll
        for (u32 n = 0; n < N; n++) level += p[n] * g[n];
    });
    level = warp_sum(level);
    each_chunk<N>(columns, [&](u32 i) {
        take(softmax + i, p);
        take(gradient + i, g);
#pragma unroll
        for (u32 n = 0; n < N; n++) p[n] = p[n] * (g[n] - level);
        give(out + i, p);
    });
}

template <typename T> __device__ inline void forward(T* out, u32 rows, u32 columns, const T* x, const i32* valid) {
    u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    u32 count = valid ? filled(valid[row], columns) : columns;
    u64 at = (u64)row * columns;
    if (columns % WIDTH<T> == 0) {
        softmax_row<WIDTH<T>>(x + at, columns, count, out + at);
    } else {
        softmax_row<1>(x + at, columns, count, out + at);
    }
}

template <typename T>
__device__ inline void backward(T* out, u32 rows, u32 columns, const T* softmax, const T* gradient) {
    u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    u64 at = (u64)row * columns;
    if (columns % WIDTH<T> == 0) {
        row_gradient<WIDTH<T>>(softmax + at, gradient + at, columns, out + at);
    } else {
        row_gradient<1>(softmax + at, gradient + at, columns, out + at);
    }
}

#define KERNELS(T)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) softmax_##T(T* out, u32 rows, u32 columns, const T* x) {        \
        forward<T>(out, rows, columns, x, nullptr);                                                                   \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
        softmax_valid_##T(T* out, u32 rows, u32 columns, const T* x, const i32* valid) {                              \
        forward<T>(out, rows, columns, x, valid);                                                                     \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
        softmax_gradient_##T(T* out, u32 rows, u32 columns, const T* softmax, const T* gradient) {                    \
        backward<T>(out, rows, columns, softmax, gradient);                                                           \
    }

KERNELS(f32)
KERNELS(bf16)
