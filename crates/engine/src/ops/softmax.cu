// Softmax with the row maximum subtracted: a warp per row. The row is read three times, the second and third time from the
// L1 cache. Its gradient is dx = p * (dp - delta) with delta = rowsum(p * dp).

template <u32 N, typename F> __device__ inline void each_chunk(u32 columns, F work) {
    for (u32 i = threadIdx.x % 32 * N; i < columns; i += 32 * N) work(i);
}

// Softmax of the first `count` columns; the others become 0.
template <u32 N, typename T> __device__ inline void softmax_row(const T* x, u32 columns, u32 count, T* out) {
    f32 row_max = __int_as_float(0xff800000), sum = 0.f, v[N];
    each_chunk<N>(count, [&](u32 i) {
        load_elements(x + i, v);
#pragma unroll
        for (u32 n = 0; n < N; n++)
            if (i + n < count) row_max = fmaxf(row_max, v[n]);
    });
    row_max = warp_max(row_max);
    each_chunk<N>(count, [&](u32 i) {
        load_elements(x + i, v);
#pragma unroll
        for (u32 n = 0; n < N; n++)
            if (i + n < count) sum += expf(v[n] - row_max);
    });
    f32 inverse_sum = 1.f / warp_sum(sum);
    each_chunk<N>(columns, [&](u32 i) {
        load_elements(x + i, v);
#pragma unroll
        for (u32 n = 0; n < N; n++) v[n] = i + n < count ? expf(v[n] - row_max) * inverse_sum : 0.f;
        store_elements(out + i, v);
    });
}

template <u32 N, typename T>
__device__ inline void softmax_row_backward(const T* softmax, const T* dout, u32 columns, T* dx) {
    f32 delta = 0.f, p[N], dp[N];
    each_chunk<N>(columns, [&](u32 i) {
        load_elements(softmax + i, p);
        load_elements(dout + i, dp);
#pragma unroll
        for (u32 n = 0; n < N; n++) delta += p[n] * dp[n];
    });
    delta = warp_sum(delta);
    each_chunk<N>(columns, [&](u32 i) {
        load_elements(softmax + i, p);
        load_elements(dout + i, dp);
#pragma unroll
        for (u32 n = 0; n < N; n++) p[n] = p[n] * (dp[n] - delta);
        store_elements(dx + i, p);
    });
}

template <typename T> __device__ inline void forward(T* out, u32 rows, u32 columns, const T* x, const i32* valid) {
    u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    u32 count = valid ? clamp_length(valid[row], columns) : columns;
    u64 at = (u64)row * columns;
    if (columns % VECTOR<T> == 0) {
        softmax_row<VECTOR<T>>(x + at, columns, count, out + at);
    } else {
        softmax_row<1>(x + at, columns, count, out + at);
    }
}

template <typename T>
__device__ inline void backward(T* dx, u32 rows, u32 columns, const T* softmax, const T* dout) {
    u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    u64 at = (u64)row * columns;
    if (columns % VECTOR<T> == 0) {
        softmax_row_backward<VECTOR<T>>(softmax + at, dout + at, columns, dx + at);
    } else {
        softmax_row_backward<1>(softmax + at, dout + at, columns, dx + at);
    }
}

#define KERNELS(T)                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) softmax_##T(T* out, u32 rows, u32 columns, const T* x) { \
        forward<T>(out, rows, columns, x, nullptr);                                                            \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(256)                                                          \
        softmax_valid_##T(T* out, u32 rows, u32 columns, const T* x, const i32* valid) {                       \
        forward<T>(out, rows, columns, x, valid);                                                              \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(256)                                                          \
        softmax_gradient_##T(T* dx, u32 rows, u32 columns, const T* softmax, const T* dout) {                  \
        backward<T>(dx, rows, columns, softmax, dout);                                                         \
    }

KERNELS(f32)
KERNELS(bf16)
