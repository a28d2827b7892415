// int16 samples to log-mel frames and energies, for a whole padded batch in one launch.
//
// A block makes TILE frames of one row, a warp one frame at a time. The 1024 real samples of a frame are 512 complex
// ones; 512 = 16 * 32. With n = 32 a + t and k = p + 16 q, lane t transforms over a (16 points, in registers), the
// warp exchanges through shared memory, lane (p, h) transforms over the t of parity h, and the last step, over h, is
// taken together with the one that makes a real spectrum of a complex one.
//
// In f64: in f32, with exact roots and fused products, a band beside a tone at full scale comes out at 1.6 times the
// error it may have; in f64 at 0.0006 of it (the tests in `on_device/model.rs` follow this file step by step). To see
// what that costs, `typedef f32 real` is all it takes.

typedef double f64;
typedef f64 real;

constexpr u32 HOP = 256, FRAME = 1024, MIRRORED = 384;
constexpr u32 WARPS = 4, TILE = 8;
// Blocks an SM can hold by its shared memory; registers are shared out among as many and no more.
#if __CUDA_ARCH__ == 900
constexpr u32 BLOCKS = 4;
#else
constexpr u32 BLOCKS = __CUDA_ARCH__ == 800 ? 3 : 2;
#endif
// Odd, so that eight lanes of 16 bytes meet eight different bank groups both ways through the exchange.
constexpr u32 LINE = 33;

// Sections of the transform table, in f64 from its start: window, w512^(p t) for 16 p of 32 t, w1024^k for k <= 128.
constexpr u32 WINDOW = 0, TURNS = FRAME, HALF_TURNS = TURNS + 2 * 16 * 32;
// Words of the numbers table.
constexpr u32 N_MELS = 4, FLOOR = 7, LN_FLOOR = 15;

struct alignas(2 * sizeof(real)) point {
    real re, im;
};

__device__ inline point operator+(point a, point b) { return {a.re + b.re, a.im + b.im}; }
__device__ inline point operator-(point a, point b) { return {a.re - b.re, a.im - b.im}; }
__device__ inline point operator*(point a, point w) {
    return {a.re * w.re - a.im * w.im, a.re * w.im + a.im * w.re};
}

// Times -i.
__device__ inline point quarter(point a) { return {a.im, -a.re}; }

__device__ inline point table_at(const f64* table, u32 i) {
    double2 at = __ldg((const double2*)table + i);
    return {(real)at.x, (real)at.y};
}

__device__ inline real real_of(i32 sample) {
    if constexpr (sizeof(real) == 8) {
        // 2^52 + 2^31 + sample, less what is not the sample: exact, and four times as fast as the conversion.
        return (real)(__hiloint2double(0x43300000, sample ^ (i32)0x80000000) - 4503601774854144.0);
    } else {
        return (real)sample;
    }
}

__device__ inline void fourier4(point& a, point& b, point& c, point& d) {
    point s = a + c, t = a - c, u = b + d, v = quarter(b - d);
    a = s + u;
    b = t + v;
    c = s - u;
    d = t - v;
}

// Where fourier16 leaves frequency p.
__device__ constexpr u32 slot(u32 p) { return 4 * (p & 3) + (p >> 2); }

__device__ inline void fourier16(point (&x)[16]) {
    const real c = (real)0.92387953251128675613, s = (real)0.38268343236508977173, h = (real)0.70710678118654752440;
#pragma unroll
    for (u32 i = 0; i < 4; i++) fourier4(x[i], x[i + 4], x[i + 8], x[i + 12]);
    x[5] = x[5] * point{c, -s};
    x[6] = x[6] * point{h, -h};
    x[7] = x[7] * point{s, -c};
    x[9] = x[9] * point{h, -h};
    x[10] = quarter(x[10]);
    x[11] = x[11] * point{-h, -h};
    x[13] = x[13] * point{s, -c};
    x[14] = x[14] * point{-h, -h};
    x[15] = x[15] * point{-c, s};
#pragma unroll
    for (u32 k = 0; k < 4; k++) fourier4(x[4 * k], x[4 * k + 1], x[4 * k + 2], x[4 * k + 3]);
}

// From Z[k] and Z[512 - k] of the complex transform, and w = w1024^k, the magnitudes of bins k and 512 - k. (The
// halves this takes are in the window.)
__device__ inline void magnitudes_of(point a, point b, point w, f32& low, f32& high) {
    point even = {a.re + b.re, a.im - b.im}, odd = {a.im + b.im, b.re - a.re};
    point turned = odd * w;
    point x = even + turned, y = even - turned;
    low = sqrtf((f32)(x.re * x.re + x.im * x.im));
    high = sqrtf((f32)(y.re * y.re + y.im * y.im));
}

// The samples of `valid` frames from `first` on, mirrored at both ends of the row.
__device__ inline void stage(const i16* row, i32 length, u32 first, u32 valid, i16* staged) {
    i32 count = (i32)((valid - 1) * HOP + FRAME), start = (i32)(first * HOP) - (i32)MIRRORED;
#pragma unroll 8
    for (i32 i = threadIdx.x; i < count; i += WARPS * 32) {
        i32 at = start + i;
        if (at < 0) at = -at;
        if (at >= length) at = 2 * (length - 1) - at;
        staged[i] = row[at];
    }
}

// The 513 magnitudes of the frame at `samples` (pairs of them). `exchange` and `magnitudes` are the warp's own.
__device__ inline void spectrum(const u32* samples, const f64* transform, point* exchange, f32* magnitudes) {
    u32 lane = threadIdx.x % 32, p = lane % 16, h = lane / 16;
    const f64 *turns = transform + TURNS, *half_turns = transform + HALF_TURNS;
    point x[16];
#pragma unroll
    for (u32 a = 0; a < 16; a++) {
        u32 n = 32 * a + lane, pair = samples[n];
        point window = table_at(transform + WINDOW, n);
        x[a] = {real_of((i32)(i16)(pair & 0xffffu)) * window.re, real_of((i32)pair >> 16) * window.im};
    }
    fourier16(x);
    exchange[lane] = x[0];
#pragma unroll
    for (u32 f = 1; f < 16; f++) exchange[f * LINE + lane] = x[slot(f)] * table_at(turns, f * 32 + lane);
    __syncwarp();
#pragma unroll
    for (u32 b = 0; b < 16; b++) x[b] = exchange[p * LINE + 2 * b + h];
    __syncwarp();
    fourier16(x);
    exchange[256 * h + p] = x[0];
    // w32^r for the odd lanes, 1 for the even ones: row 8 of the table has both.
#pragma unroll
    for (u32 r = 1; r < 16; r++) exchange[256 * h + p + 16 * r] = x[slot(r)] * table_at(turns, 8 * 32 + 2 * r * h);
    __syncwarp();
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        u32 k = lane + 32 * j, m = (256 - k) & 255;
        point a = exchange[k] + exchange[256 + k], a_far = exchange[k] - exchange[256 + k];
        point b = exchange[m] + exchange[256 + m], b_far = exchange[m] - exchange[256 + m];
        // Z[512] is Z[0], and Z[256] is its own mirror image.
        if (k == 0) {
            point swapped = b;
            b = b_far;
            b_far = swapped;
        }
        point w = table_at(half_turns, k);
        magnitudes_of(a, b_far, w, magnitudes[k], magnitudes[512 - k]);
        magnitudes_of(b, a_far, point{-w.im, -w.re}, magnitudes[256 - k], magnitudes[256 + k]);
    }
    if (lane == 0) {
        point a = exchange[128], b = exchange[384];
        magnitudes_of(a + b, a - b, table_at(half_turns, 128), magnitudes[128], magnitudes[384]);
    }
    __syncwarp();
}

// bands: first bin and number of bins of each; weights: those of every band's bin 0, then of every band's bin 1, ...
__device__ inline void write_bands(const f32* magnitudes, const u32* bands, const f32* weights, const u64* numbers,
                                   f32* out) {
    u32 n_mels = (u32)numbers[N_MELS];
    f32 floor = (f32)__longlong_as_double((i64)numbers[FLOOR]), ln_floor = __uint_as_float((u32)numbers[LN_FLOOR]);
    for (u32 band = threadIdx.x % 32; band < n_mels; band += 32) {
        u32 first = __ldg(bands + 2 * band), bins = __ldg(bands + 2 * band + 1);
        f32 mel = 0.f;
        for (u32 i = 0; i < bins; i++) mel += __ldg(weights + i * n_mels + band) * magnitudes[first + i];
        out[band] = mel > floor ? logf(mel) : ln_floor;
    }
}

__device__ inline void write_energy(const f32* magnitudes, f32* out) {
    u32 lane = threadIdx.x % 32;
    f32 sum = lane == 0 ? magnitudes[512] * magnitudes[512] : 0.f;
#pragma unroll
    for (u32 i = 0; i < 16; i++) sum += magnitudes[lane + 32 * i] * magnitudes[lane + 32 * i];
#pragma unroll
    for (u32 step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) *out = sqrtf(sum);
}

__device__ inline void write_padding(const u64* numbers, f32* mel, f32* energy) {
    u32 n_mels = (u32)numbers[N_MELS];
    f32 ln_floor = __uint_as_float((u32)numbers[LN_FLOOR]);
    for (u32 band = threadIdx.x % 32; band < n_mels; band += 32) mel[band] = ln_floor;
    if (energy && threadIdx.x % 32 == 0) *energy = 0.f;
}

// Block b makes frames TILE (b % tiles) ... of row b / tiles. Where `with_energy` is 0, `energy` is not touched.
extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    log_mel(const i16* audio, const u32* lengths, const u64* numbers, const f64* transform, const u32* bands,
            const f32* weights, f32* mel, f32* energy, u32 with_energy, u32 stride, u32 frames, u32 tiles) {
    __shared__ alignas(16) i16 staged[(TILE - 1) * HOP + FRAME];
    __shared__ point exchange[WARPS][16 * LINE];
    __shared__ f32 magnitudes[WARPS][516];
    u32 row = blockIdx.x / tiles, first = blockIdx.x % tiles * TILE, warp = threadIdx.x / 32;
    u32 length = min_of(lengths[row], stride), own = length > MIRRORED ? length / HOP : 0;
    u32 here = min_of(TILE, frames - first), valid = own > first ? min_of(here, own - first) : 0;
    if (valid > 0) stage(audio + (u64)row * stride, (i32)length, first, valid, staged);
    __syncthreads();
    u32 n_mels = (u32)numbers[N_MELS];
    for (u32 i = warp; i < here; i += WARPS) {
        u64 frame = (u64)row * frames + first + i;
        f32 *mel_out = mel + frame * n_mels, *energy_out = with_energy ? energy + frame : nullptr;
        if (i < valid) {
            spectrum((const u32*)staged + i * (HOP / 2), transform, exchange[warp], magnitudes[warp]);
            write_bands(magnitudes[warp], bands, weights, numbers, mel_out);
            if (energy_out) write_energy(magnitudes[warp], energy_out);
        } else {
            write_padding(numbers, mel_out, energy_out);
        }
    }
}
