// Frames with any settings: how many a row has, and their samples with reflect padding at both ends of the row.

// Indices into the packed settings.
constexpr u32 FRAME_SAMPLES = 1, FRAME_HOP = 3, FRAME_PAD = 26, MIN_SAMPLES = 27, EXTRA_FRAMES = 28;

struct Geometry {
    u32 frame, hop, pad, min_samples, extra_frames;
};

__device__ inline Geometry geometry_of(const u64* settings) {
    return {(u32)settings[FRAME_SAMPLES], (u32)settings[FRAME_HOP], (u32)settings[FRAME_PAD],
            (u32)settings[MIN_SAMPLES], (u32)settings[EXTRA_FRAMES]};
}
