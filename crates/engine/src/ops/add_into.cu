// sum += part, 16 bytes at a time where both addresses allow it.

template <typename T, u32 WIDE> __device__ inline void add(T* __restrict__ sum, const T* __restrict__ part, u64 n) {
    const u64 first = thread_index(), stride = thread_count();
    u64 done = 0;
    if (is_aligned(sum) && is_aligned(part)) {
        done = n / WIDE * WIDE;
        for (u64 i = first * WIDE; i < done; i += stride * WIDE) {
            f32 a[WIDE], b[WIDE];
            load_vec(sum + i, a);
            load_vec(part + i, b);
#pragma unroll
            for (u32 j = 0; j < WIDE; j++) a[j] += b[j];
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
