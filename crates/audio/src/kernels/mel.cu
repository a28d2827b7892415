// Log-mel spectrogram and frame energies of int16 samples: a short-time Fourier transform with a Hann window and
// reflect padding, then a mel filterbank. One launch for a batch of padded rows.
//
// The transform is a 1024-point real FFT (Cooley and Tukey 1965), computed as a 512-point complex FFT of
// z[n] = x[2n] + i x[2n + 1]. A block computes TILE frames of one row, a warp two at a
// time, 16 lanes each. A radix-2 step by decimation in frequency comes first: pass h computes the frequencies k of
// parity h, from the sums (h = 0) or differences (h = 1) of z[n] and z[n + 256], n = 16 a + t, times the twiddle
// w32^(h a). Pass 0 has no twiddles, so both frames of a warp run the same pass. Two radix-16 steps follow: lane t
// computes a 16-point DFT over a in registers, the 16 lanes transpose through shared memory, and lane p multiplies by
// the twiddles w512^((2 p + h) t) and computes a 16-point DFT over t. It then holds Z[k] for every k = 2 p + h + 32 q.
// The real spectrum also needs Z[512 - k], which has the same parity and is in one other lane.
//
// In f64, shared memory and L1 limit this as much as the f64 units do (counted: 380 wavefronts and 650 operations a
// frame). Values that take an operation or two, such as the window, are therefore computed and not loaded.
//
// Numbers of the transform are `real`: f64, or two f32, by the file that precedes this one. In one f32, with exact
// twiddles and fused multiply-adds, a band beside a full-scale tone has 1.5 times the permitted error; in f64 and in two
// f32 it has 0.0006 of it. `transform.rs` follows this file step by step.

constexpr u32 HOP = 256, FRAME = 1024, REFLECT = 384;
constexpr u32 WARPS = 4, TILE = 8;
// Row length of the transpose. Odd, so that 16 lanes of 8 bytes have no bank conflicts when they store or load.
constexpr u32 PADDED_ROW = 17;
// Words of two samples that a staged hop takes: 16 more than it has, so that the lanes of two frames have no bank
// conflicts.
constexpr u32 STAGED_HOP = HOP / 2 + 16;
// Magnitudes of a frame: 513 bins, and three zeros because bands are read four bins at a time. The stride between
// frames is odd, because a pass stores every other bin; of the odd numbers it is the one with the fewest bank
// conflicts for 80 bands.
constexpr u32 BINS = 513, ZEROS = 3, MAGNITUDES = 545;

// Sections of the twiddle table, in complex numbers from its start: w512^((2 p + h) t) as [h: 2][t: 16][p: 16], and
// w1024^k for k < 32.
constexpr u32 TWIDDLES_512 = 0, TWIDDLES_1024 = 2 * 16 * 16;
// Indices into the packed settings.
constexpr u32 N_MELS = 4, FLOOR = 7, LN_FLOOR = 15;

struct alignas(16) complex {
    real re, im;
};

// cos(2 pi i / 32). Instructions take operands from constant memory directly; as literals on sm_90 every use costs one
// or two more instructions, 90 in a pass.
__constant__ real COS[9] = {constant(1.0),
                            constant(0.98078528040323044913),
                            constant(0.92387953251128675613),
                            constant(0.83146961230254523708),
                            constant(0.70710678118654752440),
                            constant(0.55557023301960222474),
                            constant(0.38268343236508977173),
                            constant(0.19509032201612826785),
                            constant(0.0)};

// exp(-2 pi i k / 32) for k <= 24.
__device__ inline complex root32(u32 k) {
    if (k <= 8) return {COS[k], -COS[8 - k]};
    if (k <= 16) return {-COS[16 - k], -COS[k - 8]};
    return {-COS[k - 16], COS[24 - k]};
}

__device__ inline complex operator+(complex a, complex b) { return {a.re + b.re, a.im + b.im}; }
__device__ inline complex operator-(complex a, complex b) { return {a.re - b.re, a.im - b.im}; }
__device__ inline complex operator*(complex a, complex w) {
    return {fma(a.re, w.re, -(a.im * w.im)), fma(a.re, w.im, a.im * w.re)};
}

// sum + a w, with fused multiply-adds.
__device__ inline complex multiply_add(complex sum, complex a, complex w) {
    return {fma(a.re, w.re, fma(-a.im, w.im, sum.re)), fma(a.re, w.im, fma(a.im, w.re, sum.im))};
}

// a - b, given sum = a + b: 2 a - sum.
__device__ inline complex difference_of(complex a, complex sum) {
    return {twice_minus(a.re, sum.re), twice_minus(a.im, sum.im)};
}

// -i a.
__device__ inline complex times_minus_i(complex a) { return {a.im, -a.re}; }

__device__ inline complex half_of(complex a) { return {half_of(a.re), half_of(a.im)}; }

__device__ inline complex twiddle_at(const u64* table, u32 i) {
    complex w;
    load_pair(table, i, w.re, w.im);
    return w;
}

// The DFT of four numbers, from their sums and differences s = a + c, t = a - c, u = b + d, v = b - d.
__device__ inline void dft4_combine(complex& a, complex& b, complex& c, complex& d, complex s, complex t, complex u,
                                    complex v) {
    a = s + u;
    b = t + times_minus_i(v);
    c = s - u;
    d = t - times_minus_i(v);
}

__device__ inline void dft4(complex& a, complex& b, complex& c, complex& d) {
    dft4_combine(a, b, c, d, a + c, a - c, b + d, b - d);
}

// The DFT of a, b wb, c wc, d wd.
__device__ inline void dft4_twiddled(complex& a, complex& b, complex& c, complex& d, complex wb, complex wc,
                                     complex wd) {
    complex s = multiply_add(a, c, wc), twiddled = b * wb, u = multiply_add(twiddled, d, wd);
    dft4_combine(a, b, c, d, s, difference_of(a, s), u, difference_of(twiddled, u));
}

// Where the 16-point DFT leaves frequency p: its base-4 digits are reversed.
__device__ constexpr u32 digit_reversed(u32 p) { return 4 * (p & 3) + (p >> 2); }

// The second radix-4 step of a 16-point DFT. The first is dft4 of every fourth element.
__device__ inline void dft16_second(complex (&x)[16]) {
    dft4(x[0], x[1], x[2], x[3]);
    dft4_twiddled(x[4], x[5], x[6], x[7], root32(2), root32(4), root32(6));
    complex twiddled = x[9] * root32(4), s = x[8] + times_minus_i(x[10]), t = x[8] - times_minus_i(x[10]);
    complex u = multiply_add(twiddled, x[11], root32(12));
    dft4_combine(x[8], x[9], x[10], x[11], s, t, u, difference_of(twiddled, u));
    dft4_twiddled(x[12], x[13], x[14], x[15], root32(6), root32(12), root32(18));
}

// The powers of bins k and 512 - k of the real transform, from Z[k] and Z[512 - k] of the complex one and w = w1024^k.
__device__ inline void powers(complex a, complex b, complex w, f32& low, f32& high) {
    complex even = {a.re + b.re, a.im - b.im}, odd = {a.im + b.im, b.re - a.re};
    complex x = multiply_add(even, odd, w), y = difference_of(even, x);
    low = power_of(x.re, x.im);
    high = power_of(y.re, y.im);
}

// Copies the samples of `valid` frames from `first` on to shared memory, with reflect padding at both ends of the row.
// Eight at a time if the row is aligned.
__device__ inline void stage(const i16* row, i32 length, u32 first, u32 valid, u32* staged) {
    i32 count = (i32)((valid - 1) * HOP + FRAME), start = (i32)(first * HOP) - (i32)REFLECT;
    bool aligned = (u64)row % 16 == 0;
    for (i32 i = 8 * threadIdx.x; i < count; i += 8 * WARPS * 32) {
        u32* to = staged + i / HOP * STAGED_HOP + i % HOP / 2;
        i32 from = start + i;
        if (aligned && from >= 0 && from + 8 <= length) {
            *(uint4*)to = __ldg((const uint4*)(row + from));
        } else {
#pragma unroll
            for (i32 j = 0; j < 8; j++) {
                i32 at = from + j;
                if (at < 0) at = -at;
                if (at >= length) at = 2 * (length - 1) - at;
                ((i16*)to)[j] = row[at];
            }
        }
    }
}

// Weights for dp2a: plus or minus the first sample of a pair, or the second.
constexpr i32 FIRST = 0x0001, SECOND = 0x0100, MINUS_FIRST = 0x00ff, MINUS_SECOND = 0xff00;

// The radix-2 step with the window v: z[n] v[n] + (-1)^h z[n + 256] v[n + 256]. A Hann window has v[n + 256] = 1 -
// v[n], so this is far + v[n] (near - far), far = (-1)^h z[n + 256]. One dp2a selects a sample of a pair, applies its
// sign and adds it.
__device__ inline complex radix2_windowed(i32 near, i32 far, u32 h, real v_re, real v_im) {
    i32 plus_first = h ? MINUS_FIRST : FIRST, plus_second = h ? MINUS_SECOND : SECOND;
    i32 minus_first = h ? FIRST : MINUS_FIRST, minus_second = h ? SECOND : MINUS_SECOND;
    i32 re = __dp2a_lo(far, plus_first, SAMPLE_BIAS), im = __dp2a_lo(far, plus_second, SAMPLE_BIAS);
    i32 re_apart = __dp2a_lo(far, minus_first, __dp2a_lo(near, FIRST, SAMPLE_BIAS));
    i32 im_apart = __dp2a_lo(far, minus_second, __dp2a_lo(near, SECOND, SAMPLE_BIAS));
    return {windowed(re_apart, re, v_re), windowed(im_apart, im, v_im)};
}

// The 16 inputs of a lane's first DFT. The window's angle at sample 32 a + i is that at sample i plus 2 pi a / 32.
__device__ inline void load(const u32* samples, const u64* twiddles, u32 t, u32 h, complex (&x)[16]) {
    complex even = half_of(twiddle_at(twiddles, TWIDDLES_1024 + 2 * t));
    complex odd = half_of(twiddle_at(twiddles, TWIDDLES_1024 + 2 * t + 1));
    auto at = [&](u32 a, real v_re, real v_im) {
        const u32* near = samples + a / 8 * STAGED_HOP + a % 8 * 16 + t;
        x[a] = radix2_windowed((i32)near[0], (i32)near[2 * STAGED_HOP], h, v_re, v_im);
    };
    const real half = constant(0.5);
    at(0, half - even.re, half - odd.re);
    at(8, half - even.im, half - odd.im);
#pragma unroll
    for (u32 a = 1; a < 8; a++) {
        // cos(A + T) = cos A cos T - sin A sin T. For pi - A instead of A, cos A changes its sign.
        real c = -COS[a], s = -COS[8 - a];
        real v_re = fma(s, even.im, half), v_im = fma(s, odd.im, half);
        at(a, fma(c, even.re, v_re), fma(c, odd.re, v_im));
        at(16 - a, fma(-c, even.re, v_re), fma(-c, odd.re, v_im));
    }
    if (h == 1) {
#pragma unroll
        for (u32 a = 1; a < 16; a++) x[a] = a == 8 ? times_minus_i(x[a]) : x[a] * root32(a);
    }
}

// Transposes 16 x 16 complex numbers over 16 lanes. Real parts first, then imaginary parts: half the shared memory.
__device__ inline void transpose(complex (&x)[16], real* exchange, u32 t) {
#pragma unroll
    for (u32 i = 0; i < 16; i++) exchange[i * PADDED_ROW + t] = x[digit_reversed(i)].re;
    __syncwarp();
    complex y[16];
#pragma unroll
    for (u32 i = 0; i < 16; i++) y[i].re = exchange[t * PADDED_ROW + i];
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < 16; i++) exchange[i * PADDED_ROW + t] = x[digit_reversed(i)].im;
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < 16; i++) y[i].im = exchange[t * PADDED_ROW + i];
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < 16; i++) x[i] = y[i];
}

// The 16-point DFT of x[i] w512^((2 p + h) i).
__device__ inline void dft16_twiddled(complex (&x)[16], const u64* twiddles, u32 p, u32 h) {
    auto w = [&](u32 i) { return twiddle_at(twiddles, TWIDDLES_512 + 256 * h + 16 * i + p); };
    // Nine of the fifteen twiddles are loaded and six are computed from them: 24 operations replace six loads of 16
    // bytes, 3 % faster.
    complex eight = w(8);
    dft4_twiddled(x[0], x[4], x[8], x[12], w(4), eight, w(12));
#pragma unroll
    for (u32 i = 1; i < 4; i++) {
        complex low = w(i), high = w(i + 4);
        x[i] = x[i] * low;
        dft4_twiddled(x[i], x[i + 4], x[i + 8], x[i + 12], high, low * eight, high * eight);
    }
    dft16_second(x);
}

// The magnitudes of the bins of parity h of one frame. `samples` holds pairs of samples. Returns the lane's part of the
// sum of squares. Each frame has its own `exchange` and `magnitudes`.
__device__ inline f32 spectrum(const u32* samples, const u64* twiddles, u32 h, real* exchange, f32* magnitudes) {
    u32 p = threadIdx.x % 16;
    complex x[16];
    load(samples, twiddles, p, h, x);
#pragma unroll
    for (u32 i = 0; i < 4; i++) dft4(x[i], x[i + 4], x[i + 8], x[i + 12]);
    dft16_second(x);
    transpose(x, exchange, p);
    dft16_twiddled(x, twiddles, p, h);
    // Z[512 - k] of k = 2 p + h + 32 q is in lane `mirror` at 15 - q. Lane 0 of pass 0 has its own, at 16 - q, where
    // Z[512] is Z[0].
    u32 mirror = (16 - h - p) & 15;
    bool own = p + h == 0;
    complex w = twiddle_at(twiddles, TWIDDLES_1024 + 2 * p + h);
    f32 energy = 0.f;
#pragma unroll
    for (u32 q = 0; q < 8; q++) {
        complex sent = own ? x[digit_reversed((16 - q) & 15)] : x[digit_reversed(15 - q)], b;
        b.re = shuffled(sent.re, (i32)mirror);
        b.im = shuffled(sent.im, (i32)mirror);
        f32 low, high;
        powers(x[digit_reversed(q)], b, q == 0 ? w : w * root32(q), low, high);
        u32 k = 2 * p + h + 32 * q;
        magnitudes[k] = root_of(low);
        magnitudes[512 - k] = root_of(high);
        energy += low + high;
    }
    if (own) {
        // Bin 256 is its own mirror image.
        complex z = x[digit_reversed(8)];
        f32 power = four_powers_of(z.re, z.im);
        magnitudes[256] = root_of(power);
        energy += power;
    }
    return energy;
}

// The mel filterbank and the logarithm. bands: first bin and number of bins of each band. weights: those of the first
// four bins of every band, then of the second four of every band, ...
__device__ inline void write_bands(const f32* magnitudes, const u32* bands, const f32* weights, const u64* settings,
                                   f32* out) {
    u32 n_mels = (u32)settings[N_MELS];
    f32 floor = (f32)__longlong_as_double((i64)settings[FLOOR]), ln_floor = __uint_as_float((u32)settings[LN_FLOOR]);
    for (u32 band = threadIdx.x % 16; band < n_mels; band += 16) {
        uint2 span = __ldg((const uint2*)bands + band);
        const float4* four = (const float4*)weights + band;
        const f32 *here = magnitudes + span.x, *end = here + span.y;
        f32 mel = 0.f;
#pragma unroll 2
        for (; here < end; here += 4, four += n_mels) {
            float4 w = __ldg(four);
            mel = fmaf(w.w, here[3], fmaf(w.z, here[2], fmaf(w.y, here[1], fmaf(w.x, here[0], mel))));
        }
        out[band] = mel > floor ? ln_of(mel) : ln_floor;
    }
}

__device__ inline void write_padding(const u64* settings, f32* mel) {
    u32 n_mels = (u32)settings[N_MELS];
    f32 ln_floor = __uint_as_float((u32)settings[LN_FLOOR]);
    for (u32 band = threadIdx.x % 16; band < n_mels; band += 16) mel[band] = ln_floor;
}

// The sum over 16 lanes, in all of them.
__device__ inline f32 sum16(f32 x) {
#pragma unroll
    for (u32 step = 8; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

// Block b computes frames TILE b ... of the frames of all rows. Rows have whole tiles, so a block is in one row. A grid
// of rows by the longest row's frames would have idle blocks for every shorter row, and a block finds its row with one
// load either way. If `with_energy` is 0, `energy` is not accessed.
extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    LOG_MEL(const i16* audio, const u32* lengths, const u32* sample_starts, const u32* frame_starts,
            const u64* settings, const u64* twiddles, const u32* bands, const f32* weights, f32* mel, f32* energy,
            u32 with_energy, u32 rows) {
    __shared__ alignas(16) u32 staged[(TILE - 1 + FRAME / HOP) * STAGED_HOP];
    __shared__ real all_exchanges[2 * WARPS][16 * PADDED_ROW];
    __shared__ f32 all_magnitudes[2 * WARPS][MAGNITUDES];
    u32 half = threadIdx.x / 16, lane = threadIdx.x % 16;
    u32 row = row_of(frame_starts, rows, blockIdx.x * TILE), first = blockIdx.x * TILE - __ldg(frame_starts + row);
    real* exchange = all_exchanges[half];
    f32* magnitudes = all_magnitudes[half];
    u32 length = min_of(lengths[row], row_capacity(sample_starts, row));
    u32 row_frames = length > REFLECT ? length / HOP : 0;
    u32 valid = row_frames > first ? min_of(TILE, row_frames - first) : 0;
    if (valid > 0) stage(audio + __ldg(sample_starts + row), (i32)length, first, valid, staged);
    if (lane < ZEROS) magnitudes[BINS + lane] = 0.f;
    __syncthreads();
    u32 n_mels = (u32)settings[N_MELS];
    for (u32 done = 0; done < TILE; done += 2 * WARPS) {
        u32 i = done + half;
        u64 frame = (u64)blockIdx.x * TILE + i;
        f32 total = 0.f;
        // The condition is the same for the whole block, although some of its frames may be padding: possible
        // divergence makes every shuffle and every __syncwarp slower.
        if (done < valid) {
#pragma unroll 1
            for (u32 h = 0; h < 2; h++)
                total += spectrum(staged + i * STAGED_HOP, twiddles, h, exchange, magnitudes);
            total = sum16(total);
        }
        __syncwarp();
        if (i < valid) {
            write_bands(magnitudes, bands, weights, settings, mel + frame * n_mels);
        } else {
            write_padding(settings, mel + frame * n_mels);
        }
        if (with_energy && lane == 0) energy[frame] = i < valid ? sqrtf(total) : 0.f;
        __syncwarp();
    }
}
