// Cross-entropy of logits with class indices: logsumexp minus the target's logit, and its gradient, softmax minus
// one-hot. A frame is processed by a group of lanes, as many as it has work for.

constexpr u32 FORWARD_THREADS = 512, BACKWARD_THREADS = 256;

// Lanes per frame, a power of two: about eight classes each, so that a warp stays busy with few classes too.
__device__ inline u32 lanes_per_frame(u32 classes) {
    u32 lanes = 1;
    while (lanes < 32 && lanes * 8 < classes) lanes *= 2;
    return lanes;
}

__device__ inline f32 group_max(f32 x, u32 lanes) {
    for (u32 lane_mask = lanes / 2; lane_mask > 0; lane_mask /= 2)
        x = max_of(x, __shfl_xor_sync(0xffffffffu, x, lane_mask));
    return x;
}

__device__ inline f32 group_sum(f32 x, u32 lanes) {
    for (u32 lane_mask = lanes / 2; lane_mask > 0; lane_mask /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane_mask);
    return x;
}

// partial[chunk] = the sum over the valid frames of a chunk whose target is a class; lse[frame] = the logsumexp of
// such a frame, 0 for others. A block per chunk. All lanes of a warp run every iteration, because they shuffle.
template <typename T>
__device__ inline void forward(f32* __restrict__ partial, f32* __restrict__ lse, const T* __restrict__ logits,
                               const i32* __restrict__ targets, const u32* __restrict__ starts,
                               const i32* __restrict__ lengths, u32 rows, u32 classes) {
    const u32 frames = __ldg(starts + rows), chunk_frames = frames_per_chunk(classes);
    const u32 first = blockIdx.x * chunk_frames, end = min_of(first + chunk_frames, frames);
    const u32 lanes = lanes_per_frame(classes), lane = threadIdx.x % lanes, groups = FORWARD_THREADS / lanes;
    u32 frame = first + threadIdx.x / lanes;
    valid_frames valid(starts, lengths, rows, min_of(frame, frames - 1));
    f32 sum = 0.0f;
    for (u32 frame0 = first; frame0 < end; frame0 += groups, frame += groups) {
        const bool in_chunk = frame < end;
        i32 target = in_chunk && valid.has(frame) ? targets[frame] : -1;
        const bool counts = target >= 0 && (u32)target < classes;
        const T* row = logits + (u64)frame * classes;
        f32 row_max = __uint_as_float(0xff800000u), exp_sum = 0.0f;
        if (counts) {
            // max_of skips NaNs; the sum below propagates them.
            for (u32 i = lane; i < classes; i += lanes) row_max = max_of(row_max, (f32)row[i]);
        }
        row_max = group_max(row_max, lanes);
        if (counts) {
            for (u32 i = lane; i < classes; i += lanes) exp_sum += expf((f32)row[i] - row_max);
        }
        exp_sum = group_sum(exp_sum, lanes);
        if (in_chunk && lane == 0) {
            const f32 frame_lse = counts ? row_max + logf(exp_sum) : 0.0f;
            lse[frame] = frame_lse;
            if (counts) sum += frame_lse - (f32)row[target];
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// out = gradient * (softmax - one-hot target), 0 for padding and for targets that are no class.
template <typename T>
__device__ inline void backward(T* __restrict__ out, const f32* __restrict__ lse, const f32* __restrict__ gradient,
                                const T* __restrict__ logits, const i32* __restrict__ targets,
                                const u32* __restrict__ starts, const i32* __restrict__ lengths, u32 rows,
                                u32 classes) {
    const u32 frames = __ldg(starts + rows), lanes = lanes_per_frame(classes), lane = threadIdx.x % lanes;
    const f32 g = __ldg(gradient);
    for (u64 at = thread_index() / lanes; at < frames; at += thread_count() / lanes) {
        const u32 frame = (u32)at;
        const bool is_valid = valid_frames(starts, lengths, rows, frame).has(frame);
        const i32 target = targets[frame];
        const bool counts = is_valid && target >= 0 && (u32)target < classes;
        const f32 frame_lse = lse[frame];
        const T* row = logits + at * classes;
        T* to = out + at * classes;
        for (u32 i = lane; i < classes; i += lanes) {
            const f32 difference = expf((f32)row[i] - frame_lse) - (i == (u32)target ? 1.0f : 0.0f);
            to[i] = T(counts ? g * difference : 0.0f);
        }
    }
}

#define KERNELS(T)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(FORWARD_THREADS)                                                      \
        cross_entropy_##T(f32* partial, f32* lse, const T* logits, const i32* targets, const u32* starts,              \
                          const i32* lengths, u32 rows, u32 classes) {                                                 \
        forward<T>(partial, lse, logits, targets, starts, lengths, rows, classes);                                     \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(BACKWARD_THREADS)                                                     \
        cross_entropy_backward_##T(T* out, const f32* lse, const f32* gradient, const T* logits,                       \
                                   const i32* targets, const u32* starts, const i32* lengths, u32 rows, u32 classes) { \
        backward<T>(out, lse, gradient, logits, targets, starts, lengths, rows, classes);                              \
    }

KERNELS(f32)
KERNELS(bf16)
