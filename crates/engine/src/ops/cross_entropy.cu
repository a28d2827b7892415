// Cross-entropy of logits against whole-number targets. A frame has a group of lanes, as many as it has work for.

constexpr u32 FORWARD_THREADS = 512, BACKWARD_THREADS = 256;

// Lanes of a frame, a power of two: about eight classes each, so that small alphabets keep a whole warp busy.
__device__ inline u32 lanes_of_a_frame(u32 classes) {
    u32 lanes = 1;
    while (lanes < 32 && lanes * 8 < classes) lanes *= 2;
    return lanes;
}

__device__ inline f32 group_max(f32 x, u32 lanes) {
    for (u32 apart = lanes / 2; apart > 0; apart /= 2) x = max_of(x, __shfl_xor_sync(0xffffffffu, x, apart));
    return x;
}

__device__ inline f32 group_sum(f32 x, u32 lanes) {
    for (u32 apart = lanes / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}

// partial[piece] = the sum over the filled frames of a piece whose target is a class; log_sums[frame] = ln of the sum of
// e^logit there, 0 elsewhere. A block has a piece. All of a warp's lanes make every round: they exchange.
template <typename T>
__device__ inline void entropies(f32* __restrict__ partial, f32* __restrict__ log_sums, const T* __restrict__ logits,
                                 const i32* __restrict__ targets, const u32* __restrict__ starts,
                                 const i32* __restrict__ lengths, u32 rows, u32 classes) {
    const u32 frames = __ldg(starts + rows), of_a_piece = frames_of_a_piece(classes);
    const u32 first = blockIdx.x * of_a_piece, end = min_of(first + of_a_piece, frames);
    const u32 lanes = lanes_of_a_frame(classes), lane = threadIdx.x % lanes, groups = FORWARD_THREADS / lanes;
    u32 frame = first + threadIdx.x / lanes;
    filled_frames filled(starts, lengths, rows, min_of(frame, frames - 1));
    f32 sum = 0.0f;
    for (u32 round = first; round < end; round += groups, frame += groups) {
        const bool here = frame < end;
        i32 target = here && filled.has(frame) ? targets[frame] : -1;
        const bool counts = target >= 0 && (u32)target < classes;
        const T* row = logits + (u64)frame * classes;
        f32 largest = __uint_as_float(0xff800000u), scaled = 0.0f;
        if (counts) {
            // What is not a number is passed over here, and met in the sum.
            for (u32 i = lane; i < classes; i += lanes) largest = max_of(largest, (f32)row[i]);
        }
        largest = group_max(largest, lanes);
        if (counts) {
            for (u32 i = lane; i < classes; i += lanes) scaled += expf((f32)row[i] - largest);
        }
        scaled = group_sum(scaled, lanes);
        if (here && lane == 0) {
            const f32 log_sum = counts ? largest + logf(scaled) : 0.0f;
            log_sums[frame] = log_sum;
            if (counts) sum += log_sum - (f32)row[target];
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// out = gradient * (probability, less one at the target), 0 where the frame does not count.
template <typename T>
__device__ inline void less_targets(T* __restrict__ out, const f32* __restrict__ log_sums,
                                    const f32* __restrict__ gradient, const T* __restrict__ logits,
                                    const i32* __restrict__ targets, const u32* __restrict__ starts,
                                    const i32* __restrict__ lengths, u32 rows, u32 classes) {
    const u32 frames = __ldg(starts + rows), lanes = lanes_of_a_frame(classes), lane = threadIdx.x % lanes;
    const f32 g = __ldg(gradient);
    for (u64 at = thread_index() / lanes; at < frames; at += thread_count() / lanes) {
        const u32 frame = (u32)at;
        const bool is_filled = filled_frames(starts, lengths, rows, frame).has(frame);
        const i32 target = targets[frame];
        const bool counts = is_filled && target >= 0 && (u32)target < classes;
        const f32 log_sum = log_sums[frame];
        const T* row = logits + at * classes;
        T* to = out + at * classes;
        for (u32 i = lane; i < classes; i += lanes) {
            const f32 share = expf((f32)row[i] - log_sum) - (i == (u32)target ? 1.0f : 0.0f);
            to[i] = T(counts ? g * share : 0.0f);
        }
    }
}

#define CROSS_ENTROPY(T)                                                                                              \
    extern "C" __global__ void __launch_bounds__(FORWARD_THREADS)                                                     \
        cross_entropy_##T(f32* partial, f32* log_sums, const T* logits, const i32* targets, const u32* starts,        \
                          const i32* lengths, u32 rows, u32 classes) {                                                \
        entropies<T>(partial, log_sums, logits, targets, starts, lengths, rows, classes);                             \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(BACKWARD_THREADS)                                                    \
        cross_entropy_backward_##T(T* out, const f32* log_sums, const f32* gradient, const T* logits,                 \
                                   const i32* targets, const u32* starts, const i32* lengths, u32 rows, u32 classes) {\
        less_targets<T>(out, log_sums, gradient, logits, targets, starts, lengths, rows, classes);                    \
    }

CROSS_ENTROPY(f32)
CROSS_ENTROPY(bf16)
