// Element-wise losses summed over the valid frames: L1, L2 and binary cross-entropy with logits, forward and backward.
// Each loss has its own source, which ends in LOSSES(name): a model compiles only those it uses.

constexpr u32 FORWARD_THREADS = 512, BACKWARD_THREADS = 256, N = 4;

struct l1 {
    static __device__ inline f32 value(f32 prediction, f32 target) { return fabsf(prediction - target); }
    static __device__ inline f32 derivative(f32 prediction, f32 target) {
        return prediction < target ? -1.0f : prediction > target ? 1.0f : 0.0f;
    }
};

struct l2 {
    static __device__ inline f32 value(f32 prediction, f32 target) {
        return (prediction - target) * (prediction - target);
    }
    static __device__ inline f32 derivative(f32 prediction, f32 target) { return 2.0f * (prediction - target); }
};

struct bce {
    // max(z, 0) - z t + ln(1 + e^-|z|), the numerically stable form: no logarithm of 0, no overflow.
    static __device__ inline f32 value(f32 z, f32 target) {
        return (z < 0.0f ? 0.0f : z) - z * target + log1pf(expf(-fabsf(z)));
    }
    static __device__ inline f32 derivative(f32 z, f32 target) { return 1.0f / (1.0f + expf(-z)) - target; }
};

// partial[chunk] = the sum of the terms of its valid frames. A block per chunk.
template <typename L, typename T, typename U>
__device__ inline void sum_terms(f32* __restrict__ partial, const T* __restrict__ prediction,
                                 const U* __restrict__ target, const u32* __restrict__ starts,
                                 const i32* __restrict__ lengths, u32 rows, u32 columns) {
    const u32 frames = __ldg(starts + rows), chunk_frames = frames_per_chunk(columns);
    const u32 first = blockIdx.x * chunk_frames, n = min_of(chunk_frames, frames - first) * columns;
    prediction += (u64)first * columns;
    target += (u64)first * columns;
    f32 sum = 0.0f;
    if (columns % N == 0 && is_aligned(prediction) && is_aligned(target)) {
        u32 i = threadIdx.x * N;
        valid_frames valid(starts, lengths, rows, min_of(first + i / columns, frames - 1));
        for (; i < n; i += FORWARD_THREADS * N) {
            f32 a[N], b[N];
            load_vec(prediction + i, a);
            load_vec(target + i, b);
            // Padding may hold NaNs, so it is selected away, not multiplied by 0.
            const bool is_valid = valid.has(first + i / columns);
#pragma unroll
            for (u32 j = 0; j < N; j++) sum += is_valid ? L::value(a[j], b[j]) : 0.0f;
        }
    } else {
        u32 i = threadIdx.x;
        valid_frames valid(starts, lengths, rows, min_of(first + i / columns, frames - 1));
        for (; i < n; i += FORWARD_THREADS) {
            if (valid.has(first + i / columns)) sum += L::value((f32)prediction[i], (f32)target[i]);
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// out = gradient * derivative for valid frames, 0 for padding.
template <typename L, typename T, typename U>
__device__ inline void derivatives(T* __restrict__ out, const T* __restrict__ prediction, const U* __restrict__ target,
                              const u32* __restrict__ starts, const i32* __restrict__ lengths, u32 rows, u32 columns,
                              const f32* __restrict__ gradient) {
    const u64 n = (u64)__ldg(starts + rows) * columns;
    const bool fits_u32 = n <= 0xffffffffull;
    const f32 g = __ldg(gradient);
    if (columns % N == 0 && is_aligned(out) && is_aligned(prediction) && is_aligned(target)) {
        for (u64 i = thread_index() * N; i < n; i += thread_count() * N) {
            f32 a[N], b[N];
            load_vec(prediction + i, a);
            load_vec(target + i, b);
            const u32 frame = fits_u32 ? (u32)i / columns : (u32)(i / columns);
            const bool is_valid = valid_frames(starts, lengths, rows, frame).has(frame);
#pragma unroll
            for (u32 j = 0; j < N; j++) a[j] = is_valid ? g * L::derivative(a[j], b[j]) : 0.0f;
            store_vec(out + i, a);
        }
        return;
    }
    for (u64 i = thread_index(); i < n; i += thread_count()) {
        const u32 frame = fits_u32 ? (u32)i / columns : (u32)(i / columns);
        const bool is_valid = valid_frames(starts, lengths, rows, frame).has(frame);
        out[i] = T(is_valid ? g * L::derivative((f32)prediction[i], (f32)target[i]) : 0.0f);
    }
}

#define LOSS(L, T, U)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(FORWARD_THREADS)                                                     \
        L##_loss_##T##_##U(f32* partial, const T* prediction, const U* target, const u32* starts, const i32* lengths, \
                           u32 rows, u32 columns) {                                                                   \
        sum_terms<L, T, U>(partial, prediction, target, starts, lengths, rows, columns);                              \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(BACKWARD_THREADS)                                                    \
        L##_loss_backward_##T##_##U(T* out, const T* prediction, const U* target, const u32* starts,                  \
                                    const i32* lengths, u32 rows, u32 columns, const f32* gradient) {                 \
        derivatives<L, T, U>(out, prediction, target, starts, lengths, rows, columns, gradient);                      \
    }

#define LOSSES(L)      \
    LOSS(L, f32, f32)  \
    LOSS(L, bf16, f32) \
    LOSS(L, bf16, bf16)
