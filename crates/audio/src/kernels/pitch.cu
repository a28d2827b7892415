// Pitch of every frame with YIN (de Cheveigne and Kawahara 2002), for the default frame: its numbers are constants.

extern "C" __global__ void __launch_bounds__(THREADS)
    pitch(const i16* audio, const u32* lengths, const u32* sample_starts, const u32* frame_starts,
          const u64* settings, f32* out, const u32* cache_offsets, f32* cache, u32 has_cache, u32 rows) {
    constexpr Geometry g = {1024, 256, 384, 385, 0};
    __shared__ u32 pairs[staged_words(g.frame)], bytes[staged_words(g.frame)];
    __shared__ i64 partial[THREADS * LAGS];
    __shared__ f64 difference[MAX_LAGS];
    __shared__ i64 warp_sums[THREADS / 32];
    __shared__ Minimum warps[THREADS / 32];
    Memory memory = {pairs, bytes, partial, difference, warp_sums, warps};
    pitch_of_block(g, memory, audio, lengths, sample_starts, frame_starts, settings, out, cache_offsets, cache, has_cache,
                   rows);
}
