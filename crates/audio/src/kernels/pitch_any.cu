// Pitch of every frame with YIN (de Cheveigne and Kawahara 2002), for any settings. Shared memory is dynamic, because long
// frames need more than 48 KiB.

extern "C" __global__ void __launch_bounds__(THREADS)
    pitch_any(const i16* audio, const u32* lengths, const u32* sample_starts, const u32* frame_starts,
              const u64* settings, f32* out, const u32* cache_offsets, f32* cache, u32 has_cache, u32 rows) {
    extern __shared__ __align__(16) u8 dynamic[];
    Geometry g = geometry_of(settings);
    Memory memory;
    memory.partial = (i64*)dynamic;
    memory.difference = (f64*)(memory.partial + THREADS * LAGS);
    memory.warp_sums = (i64*)(memory.difference + MAX_LAGS);
    memory.warps = (Minimum*)(memory.warp_sums + THREADS / 32);
    memory.pairs = (u32*)(memory.warps + THREADS / 32);
    memory.bytes = memory.pairs + staged_words(g.frame);
    pitch_of_block(g, memory, audio, lengths, sample_starts, frame_starts, settings, out, cache_offsets, cache, has_cache,
                   rows);
}
