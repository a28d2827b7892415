// Pitch of frames whose numbers are packed settings. Shared memory is dynamic, because it is more than 48 KiB for long frames.

#define PITCH pitch_any
#define PITCH_MEMORY                                             \
    extern __shared__ __align__(16) u8 memory[];                 \
    i64* partial = (i64*)memory;                                 \
    f64* difference = (f64*)(partial + THREADS * LAGS);          \
    i64* warp_sums = (i64*)(difference + MAX_LAGS);              \
    Minimum* warps = (Minimum*)(warp_sums + THREADS / 32);       \
    u32 *pairs = (u32*)(warps + THREADS / 32), *bytes = pairs + staged_words(g.frame);
