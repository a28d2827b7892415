// delta = rowsum(dO * O), the first kernel of flash attention's backward pass (Dao et al. 2022). A separate source, so
// that models on tensor cores do not compile simt.cu, which takes as long as their own kernels.

// delta[i] = the dot product of rows i of `out` and `dout`, `head_dim` columns each, by eight lanes. There are `count` rows.
template <typename T>
__device__ inline void row_delta(u64 count, u32 head_dim, const T* out, const T* dout, f32* delta) {
    constexpr u32 N = 16 / sizeof(T);
    struct alignas(16) Vector {
        T of[N];
    };
    const u64 row = thread_index() / 8, at = row * head_dim;
    const u32 lane = threadIdx.x % 8;
    f32 sum = 0.0f;
    if (row < count && head_dim % N == 0) {
        for (u32 i = lane * N; i < head_dim; i += 8 * N) {
            Vector x = *(const Vector*)(out + at + i), y = *(const Vector*)(dout + at + i);
#pragma unroll
            for (u32 j = 0; j < N; j++) sum += (f32)x.of[j] * (f32)y.of[j];
        }
    } else if (row < count) {
        for (u32 i = lane; i < head_dim; i += 8) sum += (f32)out[at + i] * (f32)dout[at + i];
    }
    for (u32 lane_mask = 4; lane_mask > 0; lane_mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane_mask);
    if (lane == 0 && row < count) delta[row] = sum;
}

#define KERNEL(T)                                                                               \
    extern "C" __global__ void __launch_bounds__(256)                                           \
        attention_delta_##T(u64 count, u32 head_dim, const T* out, const T* dout, f32* delta) { \
        row_delta(count, head_dim, out, dout, delta);                                           \
    }

KERNEL(f32)
KERNEL(bf16)
