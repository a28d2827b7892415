// sum += part (AXPY with a factor of 1): gradient accumulation. 16 bytes at a time if both addresses are aligned.

template <typename T, u32 N> __device__ inline void add(T* __restrict__ sum, const T* __restrict__ part, u64 n) {
    const u64 first = thread_index(), stride = thread_count();
    u64 done = 0;
    if (is_aligned(sum) && is_aligned(part)) {
        done = n / N * N;
        for (u64 i = first * N; i < done; i += stride * N) {
            f32 a[N], b[N];
            load_vec(sum + i, a);
            load_vec(part + i, b);
#pragma unroll
            for (u32 j = 0; j < N; j++) a[j] += b[j];
            store_vec(sum + i, a);
        }
    }
    for (u64 i = done + first; i < n; i += stride) sum[i] = T((f32)sum[i] + (f32)part[i]);
}

extern "C" __global__ void __launch_bounds__(256) add_into_f32(f32* sum, const f32* part, u64 n) {
    add<f32, 4>(sum, part, n);
}

extern "C" __global__ void __launch_bounds__(256) add_into_bf16(bf16* sum, const bf16* part, u64 n) {
    add<bf16, 8>(sum, part, n);
}
