// Pitch of frames whose numbers are constants.

#define PITCH pitch
#define PITCH_MEMORY                                                                                       \
    __shared__ u32 pairs[staged_words(geometry_of(nullptr).frame)], bytes[staged_words(geometry_of(nullptr).frame)]; \
    __shared__ i64 partial[THREADS * LAGS];                                                                \
    __shared__ f64 difference[MAX_LAGS];                                                                   \
    __shared__ i64 warp_sums[THREADS / 32];                                                                \
    __shared__ Minimum warps[THREADS / 32];
