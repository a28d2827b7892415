// One where a frame is filled, zero where it is padding.

#define KERNELS(T)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
        length_mask_##T(const u32* starts, const i32* lengths, T* out) {                                              \
        Row row(starts, blockIdx.y);                                                                                  \
        u32 valid = filled(lengths[blockIdx.y], row.frames);                                                          \
        each_element<1>(row.frames, 1, [&](u32 frame, u32) { out[row.start + frame] = T(frame < valid ? 1.f : 0.f); }); \
    }

KERNELS(f32)
KERNELS(bf16)
