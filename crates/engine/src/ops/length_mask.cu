// The mask of valid frames: 1 for the frames of a row before its length, 0 for padding.

template <typename T> __device__ inline void mask(const u32* starts, const i32* lengths, T* out) {
    Row row(starts, blockIdx.y);
    u32 valid = clamp_length(lengths[blockIdx.y], row.frames);
    each_element<1>(row.frames, 1, [&](u32 frame, u32) { out[row.start + frame] = T(frame < valid ? 1.f : 0.f); });
}

#define KERNELS(T)                                    \
    extern "C" __global__ void __launch_bounds__(256) \
        length_mask_##T(const u32* starts, const i32* lengths, T* out) { mask(starts, lengths, out); }

KERNELS(f32)
KERNELS(bf16)
