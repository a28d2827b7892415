// Gathers the reference mel spectrogram of each row: consecutive log-mel frames of another row of the same speaker.
// blockIdx.x is the reference frame, blockIdx.y the row.

constexpr u32 HOP = 256;

// frame_starts: the first frame of each row, and the end of the last one.
extern "C" __global__ void gather_reference(const f32* mel, const u32* lengths, const u32* frame_starts,
                                            const u32* picks, f32* reference, u32 reference_frames, u32 bands,
                                            f32 silence) {
    u32 i = blockIdx.x, row = blockIdx.y;
    u32 from = min(picks[2 * row], gridDim.y - 1), start = picks[2 * row + 1];
    u32 first = frame_starts[from], valid = min(lengths[from] / HOP, frame_starts[from + 1] - first);
    bool exists = start < valid && i < valid - start;
    const f32* in = mel + ((u64)first + (exists ? start + i : 0)) * bands;
    f32* out = reference + ((u64)row * reference_frames + i) * bands;
    for (u32 band = threadIdx.x; band < bands; band += blockDim.x)
        out[band] = exists ? in[band] : silence;
}
