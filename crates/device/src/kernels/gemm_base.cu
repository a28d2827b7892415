// C = (keeps ? C : 0) + (has_bias ? bias[column] : 0), for `batch` matrices of `m` rows and `n` columns.

template <typename T>
__device__ void lay_base(T* c, const T* bias, u32 m, u32 n, u32 batch, u32 stride, u64 batch_stride, bool keeps, bool has_bias) {
    u64 rows = (u64)m * batch;
    for (u64 i = thread_index(); i < rows * n; i += thread_count()) {
        u64 row = i / n;
        u32 column = (u32)(i - row * n);
        T* at = c + row / m * batch_stride + row % m * stride + column;
        f32 sum = keeps ? (f32)*at : 0.0f;
        *at = (T)(has_bias ? sum + (f32)bias[column] : sum);
    }
}

extern "C" __global__ void gemm_base_f32(
    f32* c, const f32* bias, u32 m, u32 n, u32 batch, u32 stride, u64 batch_stride, u32 keeps, u32 has_bias
) {
    lay_base(c, bias, m, n, batch, stride, batch_stride, keeps != 0, has_bias != 0);
}

extern "C" __global__ void gemm_base_bf16(
    bf16* c, const bf16* bias, u32 m, u32 n, u32 batch, u32 stride, u64 batch_stride, u32 keeps, u32 has_bias
) {
    lay_base(c, bias, m, n, batch, stride, batch_stride, keeps != 0, has_bias != 0);
}
