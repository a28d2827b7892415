// Initialises the output of a batched GEMM: C = (accumulate ? C : 0) + (has_bias ? bias[column] : 0), for `batch`
// matrices of `m` rows and `n` columns. The GEMM then runs with beta = 1.

template <typename T>
__device__ void init_c(T* c, const T* bias, u32 m, u32 n, u32 batch, u32 stride, u64 batch_stride, bool accumulate,
                       bool has_bias) {
    u64 rows = (u64)m * batch;
    for (u64 i = thread_index(); i < rows * n; i += thread_count()) {
        u64 row = i / n;
        u32 column = (u32)(i - row * n);
        T* at = c + row / m * batch_stride + row % m * stride + column;
        f32 sum = accumulate ? (f32)*at : 0.0f;
        *at = (T)(has_bias ? sum + (f32)bias[column] : sum);
    }
}

extern "C" __global__ void gemm_init_f32(
    f32* c, const f32* bias, u32 m, u32 n, u32 batch, u32 stride, u64 batch_stride, u32 accumulate, u32 has_bias
) {
    init_c(c, bias, m, n, batch, stride, batch_stride, accumulate != 0, has_bias != 0);
}

extern "C" __global__ void gemm_init_bf16(
    bf16* c, const bf16* bias, u32 m, u32 n, u32 batch, u32 stride, u64 batch_stride, u32 accumulate, u32 has_bias
) {
    init_c(c, bias, m, n, batch, stride, batch_stride, accumulate != 0, has_bias != 0);
}
