// Samples as f32, full scale 1, for models that read the waveform: row after row, as many hops as a row has frames, zeros
// after the end of a recording. A grid-stride loop over the samples of one row; blockIdx.y is the row.

// sample_starts: the first sample of each row of `audio`. frame_starts: the first frame of each row, and the end of the last.
extern "C" __global__ void waveform(const i16* audio, const u32* sample_starts, const u32* lengths,
                                    const u32* frame_starts, f32* out, u32 hop) {
    u32 row = blockIdx.y;
    const i16* in = audio + sample_starts[row];
    u64 first = (u64)frame_starts[row] * hop, room = (u64)(frame_starts[row + 1] - frame_starts[row]) * hop;
    u64 length = lengths[row];
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < room; i += (u64)gridDim.x * blockDim.x)
        out[first + i] = i < length ? (f32)in[i] * (1.f / 32768.f) : 0.f;
}
