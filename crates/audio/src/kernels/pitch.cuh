// Pitch (fundamental frequency) of every frame with YIN (de Cheveigne and Kawahara 2002): difference function,
// cumulative mean normalized difference, absolute threshold, parabolic interpolation. One block per frame.
//
// Samples are integers, and so are their autocorrelations, the differences and their cumulative sums: 64 bits hold them
// exactly, in any order of summation. Only the last few operations round, as they do on the CPU.
//
// `pitch.cu` and `pitch_any.cu` are the kernels: with the numbers of the default frame as constants, and with those of the
// packed settings.

typedef double f64;

constexpr u32 THREADS = 256;
// Lags are four a thread.
constexpr u32 MAX_LAGS = 4 * THREADS;
// A thread computes eight lags, eight samples at a time. Eight samples take nine words, so that lanes eight lags apart
// have no bank conflicts.
constexpr u32 LAGS = 8, PADDED_LAGS = 9;
// Samples that are staged for a frame: whole groups, and one more where lags reach.
__device__ constexpr u32 groups_of(u32 frame) { return (frame + LAGS - 1) / LAGS; }
__device__ constexpr u32 staged_words(u32 frame) { return (groups_of(frame) + 1) * PADDED_LAGS; }
// Groups of eight samples after which 32-bit sums are added to the 64-bit ones: 16 * 4 products of two samples by two
// low bytes, each up to 2 * 2^15 * 255, are below 2^31.
constexpr u32 BURST = 16;

// Indices into the packed settings.
constexpr u32 RATE = 0, TROUGH = 10, MAX_APERIODICITY = 11, SILENCE = 12, MIN_PERIOD = 13, MAX_PERIOD = 14;

__device__ inline u32 staged_at(u32 sample) { return sample / LAGS * PADDED_LAGS + sample % LAGS; }
__device__ inline f64 setting(const u64* settings, u32 i) { return __longlong_as_double((i64)settings[i]); }

// Sample n of the frame, with reflect padding at both ends of the row. Zero past the frame, where lags reach.
__device__ inline i32 sample_at(const i16* row, i32 length, Geometry g, u32 frame, u32 n) {
    if (n >= g.frame) return 0;
    i32 at = (i32)(frame * g.hop + n) - (i32)g.pad;
    if (at < 0) at = -at;
    if (at >= length) at = 2 * (length - 1) - at;
    return row[at];
}

// Stages every sample with its successor, twice: as they are, and as both low bytes (0 to 255) below both high bytes.
__device__ inline void stage(const i16* row, i32 length, Geometry g, u32 frame, u32* pairs, u32* bytes) {
    for (u32 n = threadIdx.x; n < (groups_of(g.frame) + 1) * LAGS; n += THREADS) {
        u32 a = (u32)sample_at(row, length, g, frame, n), b = (u32)sample_at(row, length, g, frame, n + 1);
        pairs[staged_at(n)] = (a & 0xffffu) | b << 16;
        bytes[staged_at(n)] = (a & 0xffu) | (b & 0xffu) << 8 | (a & 0xff00u) << 8 | (b & 0xff00u) << 16;
    }
}

// sum + the dot product of two samples with two low bytes, and with two high bytes.
__device__ inline i32 add_low(u32 samples, u32 bytes, i32 sum) {
    asm("dp2a.lo.s32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(samples), "r"(bytes));
    return sum;
}
__device__ inline i32 add_high(u32 samples, u32 bytes, i32 sum) {
    asm("dp2a.hi.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(samples), "r"(bytes));
    return sum;
}

// The autocorrelation sums of x[n] x[n + lag] for lags 8 group + 1 ... 8 group + 8, over every `parts`-th group of
// eight samples from `part` on.
__device__ inline void correlate(const u32* pairs, const u32* bytes, u32 sample_groups, u32 group, u32 part, u32 parts,
                                 i64 (&sums)[LAGS]) {
#pragma unroll
    for (u32 l = 0; l < LAGS; l++) sums[l] = 0;
    for (u32 m = part; m + group < sample_groups;) {
        i32 low[LAGS] = {0, 0, 0, 0, 0, 0, 0, 0}, high[LAGS] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (u32 burst = 0; burst < BURST && m + group < sample_groups; burst++, m += parts) {
            const u32 *here = pairs + m * PADDED_LAGS, *there = bytes + (m + group) * PADDED_LAGS;
            u32 y[2 * LAGS];
#pragma unroll
            for (u32 j = 0; j < LAGS; j++) {
                y[j] = there[j];
                y[LAGS + j] = there[PADDED_LAGS + j];
            }
#pragma unroll
            for (u32 j = 0; j < LAGS; j += 2) {
                u32 x = here[j];
#pragma unroll
                for (u32 l = 0; l < LAGS; l++) {
                    low[l] = add_low(x, y[j + l + 1], low[l]);
                    high[l] = add_high(x, y[j + l + 1], high[l]);
                }
            }
        }
#pragma unroll
        for (u32 l = 0; l < LAGS; l++) sums[l] += (i64)high[l] * 256 + low[l];
    }
}

// Inclusive prefix sum over a block, four numbers a thread. Returns the sum of all.
__device__ inline i64 prefix_sums(i64 (&v)[4], i64* warp_sums) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    v[1] += v[0];
    v[2] += v[1];
    v[3] += v[2];
    i64 upto = v[3];
#pragma unroll
    for (u32 step = 1; step < 32; step *= 2) {
        i64 before = __shfl_up_sync(0xffffffffu, upto, step);
        if (lane >= step) upto += before;
    }
    if (lane == 31) warp_sums[warp] = upto;
    __syncthreads();
    i64 before = upto - v[3], all = 0;
#pragma unroll
    for (u32 w = 0; w < THREADS / 32; w++) {
        if (w < warp) before += warp_sums[w];
        all += warp_sums[w];
    }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < 4; i++) v[i] += before;
    return all;
}

// The sum of squares of the samples past the first four of every thread. Block-wide.
__device__ inline i64 energy_beyond(const u32* pairs, u32 frame, i64* warp_sums) {
    i64 sum = 0, all = 0;
    for (u32 n = MAX_LAGS + threadIdx.x; n < frame; n += THREADS) {
        i64 x = (i16)(pairs[staged_at(n)] & 0xffffu);
        sum += x * x;
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
    __syncthreads();
#pragma unroll
    for (u32 w = 0; w < THREADS / 32; w++) all += warp_sums[w];
    __syncthreads();
    return all;
}

// Whether i is a local minimum. Both ends have one neighbour.
__device__ inline bool is_dip(const f64* difference, u32 i, u32 last) {
    bool falls = i == 0 || difference[i] < difference[i - 1];
    if (i == 0) return difference[0] < difference[1];
    return falls && (i == last || difference[i] <= difference[i + 1]);
}

// Parabolic interpolation: the distance of the minimum of the parabola through three points from the middle one.
__device__ inline f64 parabola_shift(const f64* difference, u32 i, u32 last) {
    if (i == 0 || i == last) return 0.0;
    f64 left = difference[i - 1], middle = difference[i], right = difference[i + 1];
    f64 curvature = __dsub_rn(__dadd_rn(left, right), 2.0 * middle), slope = __dsub_rn(right, left) / 2.0;
    return fabs(slope) >= fabs(curvature) ? 0.0 : -slope / curvature;
}

// The first local minimum below the threshold, and the global minimum (the first of equals).
struct Minimum {
    u32 dip, lowest;
    f64 value;
};

__device__ inline void merge(Minimum& a, u32 dip, u32 lowest, f64 value) {
    a.dip = min_of(a.dip, dip);
    bool better = value < a.value || (value == a.value && lowest < a.lowest);
    a.lowest = better ? lowest : a.lowest;
    a.value = better ? value : a.value;
}

__device__ inline Minimum search(const f64* difference, u32 last, f64 threshold) {
    Minimum found = {0xffffffffu, 0xffffffffu, 1e300};
    for (u32 i = threadIdx.x; i <= last; i += THREADS) {
        bool dip = difference[i] < threshold && is_dip(difference, i, last);
        merge(found, dip ? i : 0xffffffffu, i, difference[i]);
    }
#pragma unroll
    for (u32 step = 16; step > 0; step /= 2) {
        u32 dip = __shfl_xor_sync(0xffffffffu, found.dip, step);
        u32 lowest = __shfl_xor_sync(0xffffffffu, found.lowest, step);
        f64 value = __shfl_xor_sync(0xffffffffu, found.value, step);
        merge(found, dip, lowest, value);
    }
    return found;
}

constexpr u32 NOT_CACHED = 0xffffffffu, NOT_COMPUTED = 0xffffffffu;

// Shared memory of a block.
struct Memory {
    // The staged samples: staged_words(frame) words each.
    u32 *pairs, *bytes;
    // THREADS * LAGS partial sums, MAX_LAGS differences, and a number and a minimum of every warp.
    i64* partial;
    f64* difference;
    i64* warp_sums;
    Minimum* warps;
};

// Block b computes frame b of the frames of all rows. A row with an offset into `cache` is read from there if it has
// been computed before: the same recording has the same pitch in every epoch.
__device__ inline void pitch_of_block(Geometry g, Memory memory, const i16* audio, const u32* lengths,
                                      const u32* sample_starts, const u32* frame_starts, const u64* settings, f32* out,
                                      const u32* cache_offsets, f32* cache, u32 has_cache, u32 rows) {
    u32 *pairs = memory.pairs, *bytes = memory.bytes;
    i64 *partial = memory.partial, *warp_sums = memory.warp_sums;
    f64* difference = memory.difference;
    Minimum* warps = memory.warps;
    u32 row = row_of(frame_starts, rows, blockIdx.x), frame = blockIdx.x - __ldg(frame_starts + row);
    u32 length = min_of(lengths[row], row_capacity(sample_starts, row));
    u32 row_frames = length >= g.min_samples ? length / g.hop + g.extra_frames : 0;
    u32 tid = threadIdx.x;
    if (frame >= row_frames) {
        if (tid == 0) out[blockIdx.x] = 0.f;
        return;
    }
    u32 cache_offset = has_cache ? __ldg(cache_offsets + row) : NOT_CACHED;
    f32* cached = cache_offset == NOT_CACHED ? nullptr : cache + cache_offset + frame;
    if (cached != nullptr && __float_as_uint(*cached) != NOT_COMPUTED) {
        if (tid == 0) out[blockIdx.x] = *cached;
        return;
    }
    u32 min_period = (u32)settings[MIN_PERIOD], max_period = (u32)settings[MAX_PERIOD];
    u32 groups = (max_period + LAGS - 1) / LAGS, parts = THREADS / groups;
    stage(audio + __ldg(sample_starts + row), (i32)length, g, frame, pairs, bytes);
    __syncthreads();
    if (tid < groups * parts) {
        i64 sums[LAGS];
        correlate(pairs, bytes, groups_of(g.frame), tid % groups, tid / groups, parts, sums);
#pragma unroll
        for (u32 l = 0; l < LAGS; l++) partial[tid * LAGS + l] = sums[l];
    }
    i64 head[4], sum[4], differences[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 n = 4 * tid + i;
        i64 x = MAX_LAGS <= g.frame || n < g.frame ? (i16)(pairs[staged_at(n)] & 0xffffu) : 0;
        head[i] = x * x;
    }
    i64 energy = prefix_sums(head, warp_sums);  // It synchronizes the block: `partial` is complete.
    if (g.frame > MAX_LAGS) energy += energy_beyond(pairs, g.frame, warp_sums);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 lag = 4 * tid + i + 1;
        i64 correlation = 0;
        if (lag <= max_period)
            for (u32 part = 0; part < parts; part++) correlation += partial[part * groups * LAGS + lag - 1];
        // At lag 1 the first sample's energy is left out, as on the CPU.
        differences[i] = lag <= max_period ? 2 * (energy - correlation) - (lag == 1 ? 0 : head[i]) : 0;
        sum[i] = differences[i];
    }
    prefix_sums(sum, warp_sums);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 lag = 4 * tid + i + 1;
        if (lag < min_period || lag > max_period) continue;
        // In units of full scale squared, which is a shift of the exponent.
        f64 scaled_difference = (f64)differences[i] * 0x1p-30, mean = (f64)sum[i] * 0x1p-30 / (f64)lag;
        difference[lag - min_period] = scaled_difference / (mean + 2.2250738585072014e-308);
    }
    __syncthreads();
    u32 last = max_period - min_period;
    Minimum found = search(difference, last, setting(settings, TROUGH));
    if (tid % 32 == 0) warps[tid / 32] = found;
    __syncthreads();
    if (tid == 0) {
        for (u32 w = 1; w < THREADS / 32; w++) merge(found, warps[w].dip, warps[w].lowest, warps[w].value);
        u32 at = found.dip <= last ? found.dip : found.lowest;
        f64 period = (f64)(min_period + at) + parabola_shift(difference, at, last);
        f64 rms = sqrt((f64)energy * 0x1p-30 / (f64)g.frame);
        bool voiced = difference[at] <= setting(settings, MAX_APERIODICITY) && rms >= setting(settings, SILENCE);
        f32 hz = voiced ? (f32)((f64)settings[RATE] / period) : 0.f;
        out[blockIdx.x] = hz;
        if (cached != nullptr) *cached = hz;
    }
}
