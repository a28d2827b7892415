// Polyphase resampling with a windowed-sinc lowpass (Smith and Gossett 1984; Crochiere and Rabiner 1983): rows of int16
// samples at several rates become rows at one rate. One thread per output sample.
//
// The result has the CPU's bits: the same eight partial sums in the same order, every product and every sum rounded (no
// fused multiply-add), the same rounding to int16. The CPU's samples are smaller by 2^15, which changes no digit.

// Words of a filter: up and down factor in lowest terms, delay, taps per phase, offset of its weights. The two rates
// follow, and a zero.
constexpr u32 UP = 0, DOWN = 1, DELAY = 2, TAPS = 3, WEIGHTS = 4, FILTER_WORDS = 8;

// Zero beyond both ends. (A negative index is a large unsigned one.)
__device__ inline f32 sample_at(const i16* row, i32 at, u32 length) { return (u32)at < length ? (f32)row[at] : 0.f; }

__device__ inline i16 convolve(const i16* row, u32 length, const u32* filter, const f32* weights, u32 m) {
    u32 up = filter[UP], taps = filter[TAPS];
    // Weights are stored by tap and, within a tap, in the order in which output samples use the phases, so that
    // neighbouring threads load neighbouring weights.
    const f32* weight = weights + filter[WEIGHTS] + m % up;
    i32 at = (i32)(((u64)m * filter[DOWN] + filter[DELAY]) / up) - (i32)(taps - 1);
    f32 sums[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f}, rest = 0.f;
    u32 tap = 0;
    for (; tap + 8 <= taps; tap += 8) {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            f32 product = __fmul_rn(__ldg(weight + (u64)(tap + i) * up), sample_at(row, at + (i32)(tap + i), length));
            sums[i] = __fadd_rn(sums[i], product);
        }
    }
    for (; tap < taps; tap++) {
        rest = __fadd_rn(rest, __fmul_rn(__ldg(weight + (u64)tap * up), sample_at(row, at + (i32)tap, length)));
    }
    f32 sum = sums[0];
#pragma unroll
    for (u32 i = 1; i < 8; i++) sum = __fadd_rn(sum, sums[i]);
    return (i16)__float2int_rn(clamp_to(__fadd_rn(sum, rest), -32768.f, 32767.f));
}

// Block b computes samples 256 b ... of the output samples of all rows. Rows have whole tiles, so a block is in one
// row. A row whose rate index is past the last filter has the output rate already and is copied. Samples past the
// row's length, or past what the ratio gives, are 0.
extern "C" __global__ void __launch_bounds__(256)
    resample(const i16* audio, const u32* in_starts, const u32* in_lengths, const u32* rates, const u32* filters,
             const f32* weights, i16* out, const u32* out_starts, const u32* out_lengths, u32 num_filters, u32 rows) {
    u32 at = blockIdx.x * 256 + threadIdx.x;
    u32 row = row_of(out_starts, rows, blockIdx.x * 256), m = at - __ldg(out_starts + row);
    u32 length = min_of(in_lengths[row], row_capacity(in_starts, row)), wanted = out_lengths[row], rate = rates[row];
    const i16* samples = audio + __ldg(in_starts + row);
    i16 value = 0;
    if (rate >= num_filters) {
        if (m < min_of(length, wanted)) value = samples[m];
    } else {
        const u32* filter = filters + rate * FILTER_WORDS;
        // m < ceil(length * up / down)
        bool exists = (u64)m * filter[DOWN] < (u64)length * filter[UP];
        if (m < wanted && exists) value = convolve(samples, length, filter, weights, m);
    }
    out[at] = value;
}
