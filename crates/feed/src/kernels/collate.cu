// The reference voice: a piece of another row's log-mel. Block x is the reference's frame, block y its row.

#define HOP 256u

// frame_starts: where each row's frames begin, and behind the last one the end.
extern "C" __global__ void gather_reference(const f32 *mel, const u32 *lengths, const u32 *frame_starts,
                                            const u32 *picks, f32 *reference, u32 reference_frames, u32 bands,
                                            f32 silence)
{
    u32 i = blockIdx.x, row = blockIdx.y;
    u32 from = min(picks[2 * row], gridDim.y - 1), start = picks[2 * row + 1];
    u32 first = frame_starts[from], real = min(lengths[from] / HOP, frame_starts[from + 1] - first);
    bool heard = start < real && i < real - start;
    const f32 *in = mel + ((u64)first + (heard ? start + i : 0)) * bands;
    f32 *out = reference + ((u64)row * reference_frames + i) * bands;
    for (u32 band = threadIdx.x; band < bands; band += blockDim.x)
        out[band] = heard ? in[band] : silence;
}
