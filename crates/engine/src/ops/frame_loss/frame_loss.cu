// Losses that are a sum over filled frames: a term per element, forward and backward. Each loss is a source of its own,
// which ends in LOSSES(its name): a model compiles those it has.

constexpr u32 FORWARD_THREADS = 512, BACKWARD_THREADS = 256, WIDE = 4;

struct l1 {
    static __device__ inline f32 value(f32 found, f32 target) { return fabsf(found - target); }
    static __device__ inline f32 slope(f32 found, f32 target) {
        return found < target ? -1.0f : found > target ? 1.0f : 0.0f;
    }
};

struct l2 {
    static __device__ inline f32 value(f32 found, f32 target) { return (found - target) * (found - target); }
    static __device__ inline f32 slope(f32 found, f32 target) { return 2.0f * (found - target); }
};

struct bce {
    // max(z, 0) - z t + ln(1 + e^-|z|): no logarithm of 0, no overflow.
    static __device__ inline f32 value(f32 z, f32 target) {
        return (z < 0.0f ? 0.0f : z) - z * target + log1pf(expf(-fabsf(z)));
    }
    static __device__ inline f32 slope(f32 z, f32 target) { return 1.0f / (1.0f + expf(-z)) - target; }
};

// partial[piece] = the sum of the terms of its filled frames. A block has a piece.
template <typename L, typename T, typename U>
__device__ inline void sum_terms(f32* __restrict__ partial, const T* __restrict__ found, const U* __restrict__ target,
                                 const u32* __restrict__ starts, const i32* __restrict__ lengths, u32 rows,
                                 u32 columns) {
    const u32 frames = __ldg(starts + rows), of_a_piece = frames_of_a_piece(columns);
    const u32 first = blockIdx.x * of_a_piece, n = min_of(of_a_piece, frames - first) * columns;
    found += (u64)first * columns;
    target += (u64)first * columns;
    f32 sum = 0.0f;
    if (columns % WIDE == 0 && is_aligned(found) && is_aligned(target)) {
        u32 i = threadIdx.x * WIDE;
        filled_frames filled(starts, lengths, rows, min_of(first + i / columns, frames - 1));
        for (; i < n; i += FORWARD_THREADS * WIDE) {
            f32 a[WIDE], b[WIDE];
            load_vec(found + i, a);
            load_vec(target + i, b);
            // What padding holds may be no number: it is passed over, not multiplied.
            const bool counts = filled.has(first + i / columns);
#pragma unroll
            for (u32 j = 0; j < WIDE; j++) sum += counts ? L::value(a[j], b[j]) : 0.0f;
        }
    } else {
        u32 i = threadIdx.x;
        filled_frames filled(starts, lengths, rows, min_of(first + i / columns, frames - 1));
        for (; i < n; i += FORWARD_THREADS) {
            if (filled.has(first + i / columns)) sum += L::value((f32)found[i], (f32)target[i]);
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// out = gradient * slope on filled frames, 0 on others.
template <typename L, typename T, typename U>
__device__ inline void slopes(T* __restrict__ out, const T* __restrict__ found, const U* __restrict__ target,
                              const u32* __restrict__ starts, const i32* __restrict__ lengths, u32 rows, u32 columns,
                              const f32* __restrict__ gradient) {
    const u64 n = (u64)__ldg(starts + rows) * columns;
    const bool is_short = n <= 0xffffffffull;
    const f32 g = __ldg(gradient);
    if (columns % WIDE == 0 && is_aligned(out) && is_aligned(found) && is_aligned(target)) {
        for (u64 i = thread_index() * WIDE; i < n; i += thread_count() * WIDE) {
            f32 a[WIDE], b[WIDE];
            load_vec(found + i, a);
            load_vec(target + i, b);
            const u32 frame = is_short ? (u32)i / columns : (u32)(i / columns);
            const bool counts = filled_frames(starts, lengths, rows, frame).has(frame);
#pragma unroll
            for (u32 j = 0; j < WIDE; j++) a[j] = counts ? g * L::slope(a[j], b[j]) : 0.0f;
            store_vec(out + i, a);
        }
        return;
    }
    for (u64 i = thread_index(); i < n; i += thread_count()) {
        const u32 frame = is_short ? (u32)i / columns : (u32)(i / columns);
        const bool counts = filled_frames(starts, lengths, rows, frame).has(frame);
        out[i] = T(counts ? g * L::slope((f32)found[i], (f32)target[i]) : 0.0f);
    }
}

#define LOSS(L, T, U)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(FORWARD_THREADS)                                                     \
        L##_loss_##T##_##U(f32* partial, const T* found, const U* target, const u32* starts, const i32* lengths,      \
                              u32 rows, u32 columns) {                                                                \
        sum_terms<L, T, U>(partial, found, target, starts, lengths, rows, columns);                                   \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(BACKWARD_THREADS)                                                    \
        L##_loss_backward_##T##_##U(T* out, const T* found, const U* target, const u32* starts,                       \
                                       const i32* lengths, u32 rows, u32 columns, const f32* gradient) {              \
        slopes<L, T, U>(out, found, target, starts, lengths, rows, columns, gradient);                                \
    }

#define LOSSES(L)                                                                                                     \
    LOSS(L, f32, f32)                                                                                                 \
    LOSS(L, bf16, f32)                                                                                                \
    LOSS(L, bf16, bf16)
