// int16 samples to log-mel frames and energies, for a whole batch of padded rows in one launch.
//
// A block makes TILE frames of one row, a warp two at a time, 16 lanes each. The 1024 real samples of a frame are 512
// complex ones, z[n]. Pass h makes the frequencies k of parity h: the sums (h = 0) or differences of z[n] and
// z[n + 256], for n = 16 a + t, times w32^(h a) (nothing in pass 0, which is why a pass has both frames rather than a
// frame both passes), are transformed over a by lane t (16 points, in registers); the 16 lanes exchange through shared
// memory; lane p turns what it got by w512^((2 p + h) t) and transforms over t. Then it has Z[k] for every k that is
// 2 p + h + 32 q. Z[512 - k], which a real spectrum takes as well, has the same parity and is in one other lane.
//
// Shared memory and L1 limit this as much as f64 does (counted: 380 wavefronts and 650 operations a frame): what takes
// an operation or two to compute, such as the window, is not looked up.
//
// In f64: in f32, with exact roots and fused products, a band beside a tone at full scale comes out at 1.5 times the
// error it may have; in f64 at 0.0006 of it (the tests in `on_device/model.rs` follow this file step by step).

typedef double f64;

constexpr u32 HOP = 256, FRAME = 1024, MIRRORED = 384;
constexpr u32 WARPS = 4, TILE = 8;
// Blocks an SM can hold by its shared memory; registers are shared out among as many and no more.
constexpr u32 BLOCKS = __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 800 ? 4 : 2;
// Odd, so that 16 lanes of 8 bytes meet different banks both ways through the exchange.
constexpr u32 LINE = 17;
// Words a hop of two samples each takes where it is staged: 16 more than there are, so that the lanes of two frames
// meet different banks.
constexpr u32 STAGED_HOP = HOP / 2 + 16;
// Magnitudes of a frame: 513, and three zeros for bands to run over into. The next frame's lie one bank on from these:
// odd, because a pass stores every other one, and of the odd numbers the one at which 80 bands collide least.
constexpr u32 BINS = 513, ZEROS = 3, MAGNITUDES = 545;

// Sections of the transform table, in points from its start: w512^((2 p + h) t) for 2 h of 16 t of 16 p, and w1024^k
// for k < 32.
constexpr u32 TURNS = 0, HALF_TURNS = 2 * 16 * 16;
// Words of the numbers table.
constexpr u32 N_MELS = 4, FLOOR = 7, LN_FLOOR = 15;

struct alignas(16) point {
    f64 re, im;
};

// cos(2 pi i / 32). In constant memory, where an operation takes them from as they are; as literals on sm_90 every use
// is an instruction or two more, 90 in a pass.
__constant__ f64 COS[9] = {1.0,
                           0.98078528040323044913,
                           0.92387953251128675613,
                           0.83146961230254523708,
                           0.70710678118654752440,
                           0.55557023301960222474,
                           0.38268343236508977173,
                           0.19509032201612826785,
                           0.0};

// exp(-2 pi i k / 32) for k <= 24.
__device__ inline point root32(u32 k) {
    if (k <= 8) return {COS[k], -COS[8 - k]};
    if (k <= 16) return {-COS[16 - k], -COS[k - 8]};
    return {-COS[k - 16], COS[24 - k]};
}

__device__ inline point operator+(point a, point b) { return {a.re + b.re, a.im + b.im}; }
__device__ inline point operator-(point a, point b) { return {a.re - b.re, a.im - b.im}; }
__device__ inline point operator*(point a, point w) {
    return {fma(a.re, w.re, -(a.im * w.im)), fma(a.re, w.im, a.im * w.re)};
}

// sum + a w.
__device__ inline point plus(point sum, point a, point w) {
    return {fma(a.re, w.re, fma(-a.im, w.im, sum.re)), fma(a.re, w.im, fma(a.im, w.re, sum.im))};
}

// a - b, where `sum` is a + b.
__device__ inline point other(point a, point sum) { return {fma(2.0, a.re, -sum.re), fma(2.0, a.im, -sum.im)}; }

// Times -i.
__device__ inline point quarter(point a) { return {a.im, -a.re}; }

__device__ inline point half_of(point a) { return {0.5 * a.re, 0.5 * a.im}; }

__device__ inline point table_at(const f64* table, u32 i) {
    double2 at = __ldg((const double2*)table + i);
    return {at.x, at.y};
}

// 2^-16 of an integer given with 2^31 added. (Full scale becomes 1, and the halves that a real spectrum takes of a
// complex one are taken.)
__device__ inline f64 scaled(i32 biased) {
    // 2^36 and that, less what is not the integer: exact, and four times as fast as the conversion.
    return __hiloint2double(0x42300000, biased) - 68719509504.0;
}

__device__ inline void finish4(point& a, point& b, point& c, point& d, point s, point t, point u, point v) {
    a = s + u;
    b = t + quarter(v);
    c = s - u;
    d = t - quarter(v);
}

__device__ inline void fourier4(point& a, point& b, point& c, point& d) {
    finish4(a, b, c, d, a + c, a - c, b + d, b - d);
}

// The same of a, b wb, c wc, d wd.
__device__ inline void turned4(point& a, point& b, point& c, point& d, point wb, point wc, point wd) {
    point s = plus(a, c, wc), turned = b * wb, u = plus(turned, d, wd);
    finish4(a, b, c, d, s, other(a, s), u, other(turned, u));
}

// Where fourier16 leaves frequency p.
__device__ constexpr u32 slot(u32 p) { return 4 * (p & 3) + (p >> 2); }

// The second half of a transform over 16 points; the first is fourier4 of every fourth.
__device__ inline void finish16(point (&x)[16]) {
    fourier4(x[0], x[1], x[2], x[3]);
    turned4(x[4], x[5], x[6], x[7], root32(2), root32(4), root32(6));
    point turned = x[9] * root32(4), s = x[8] + quarter(x[10]), t = x[8] - quarter(x[10]);
    point u = plus(turned, x[11], root32(12));
    finish4(x[8], x[9], x[10], x[11], s, t, u, other(turned, u));
    turned4(x[12], x[13], x[14], x[15], root32(6), root32(12), root32(18));
}

// From Z[k] and Z[512 - k] of the complex transform, and w = w1024^k, the powers of bins k and 512 - k.
__device__ inline void powers_of(point a, point b, point w, f32& low, f32& high) {
    point even = {a.re + b.re, a.im - b.im}, odd = {a.im + b.im, b.re - a.re};
    point x = plus(even, odd, w), y = other(even, x);
    low = (f32)fma(x.re, x.re, x.im * x.im);
    high = (f32)fma(y.re, y.re, y.im * y.im);
}

// Within one unit in the last place.
__device__ inline f32 root_of(f32 power) {
    f32 root;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(power));
    return root;
}

// The samples of `valid` frames from `first` on, mirrored at both ends of the row: eight at a time where the row
// allows it.
__device__ inline void stage(const i16* row, i32 length, u32 first, u32 valid, u32* staged) {
    i32 count = (i32)((valid - 1) * HOP + FRAME), start = (i32)(first * HOP) - (i32)MIRRORED;
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

// Signs as bytes: of the first sample of a pair, and of the second.
constexpr i32 FIRST = 0x0001, SECOND = 0x0100, MINUS_FIRST = 0x00ff, MINUS_SECOND = 0xff00;

// z[n] v[n] + (-1)^h z[n + 256] v[n + 256], where the window v[n + 256] is 1 - v[n]: the second, and v[n] times the
// difference of both. A dot product takes a sample out of its pair, gives it its sign and adds it on, at once.
__device__ inline point folded(i32 near, i32 far, u32 h, f64 v_re, f64 v_im) {
    const i32 bias = (i32)0x80000000;
    i32 plus_first = h ? MINUS_FIRST : FIRST, plus_second = h ? MINUS_SECOND : SECOND;
    i32 minus_first = h ? FIRST : MINUS_FIRST, minus_second = h ? SECOND : MINUS_SECOND;
    i32 re = __dp2a_lo(far, plus_first, bias), im = __dp2a_lo(far, plus_second, bias);
    i32 re_apart = __dp2a_lo(far, minus_first, __dp2a_lo(near, FIRST, bias));
    i32 im_apart = __dp2a_lo(far, minus_second, __dp2a_lo(near, SECOND, bias));
    return {fma(scaled(re_apart), v_re, scaled(re)), fma(scaled(im_apart), v_im, scaled(im))};
}

// The 16 folded points of a lane. Samples 32 a + i of a frame are at angle w32^a beyond that of sample i.
__device__ inline void load(const u32* samples, const f64* transform, u32 t, u32 h, point (&x)[16]) {
    point even = half_of(table_at(transform, HALF_TURNS + 2 * t));
    point odd = half_of(table_at(transform, HALF_TURNS + 2 * t + 1));
    auto at = [&](u32 a, f64 v_re, f64 v_im) {
        const u32* near = samples + a / 8 * STAGED_HOP + a % 8 * 16 + t;
        x[a] = folded((i32)near[0], (i32)near[2 * STAGED_HOP], h, v_re, v_im);
    };
    at(0, 0.5 - even.re, 0.5 - odd.re);
    at(8, 0.5 - even.im, 0.5 - odd.im);
#pragma unroll
    for (u32 a = 1; a < 8; a++) {
        // cos(A + T) = cos A cos T - sin A sin T; of half a turn less A, the first changes its sign.
        f64 c = -COS[a], s = -COS[8 - a];
        f64 v_re = fma(s, even.im, 0.5), v_im = fma(s, odd.im, 0.5);
        at(a, fma(c, even.re, v_re), fma(c, odd.re, v_im));
        at(16 - a, fma(-c, even.re, v_re), fma(-c, odd.re, v_im));
    }
    if (h == 1) {
#pragma unroll
        for (u32 a = 1; a < 16; a++) x[a] = a == 8 ? quarter(x[a]) : x[a] * root32(a);
    }
}

// Among 16 lanes, point i of lane j becomes point j of lane i. First one part, then the other: half the memory.
__device__ inline void transpose(point (&x)[16], f64* exchange, u32 t) {
#pragma unroll
    for (u32 i = 0; i < 16; i++) exchange[i * LINE + t] = x[slot(i)].re;
    __syncwarp();
    point y[16];
#pragma unroll
    for (u32 i = 0; i < 16; i++) y[i].re = exchange[t * LINE + i];
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < 16; i++) exchange[i * LINE + t] = x[slot(i)].im;
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < 16; i++) y[i].im = exchange[t * LINE + i];
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < 16; i++) x[i] = y[i];
}

// fourier16 of points turned by w512^((2 p + h) i).
__device__ inline void turned16(point (&x)[16], const f64* transform, u32 p, u32 h) {
    auto w = [&](u32 i) { return table_at(transform, TURNS + 256 * h + 16 * i + p); };
    // Nine of the fifteen turns are looked up, six are products of those: 24 operations for six loads of 16 bytes, 3 %.
    point eight = w(8);
    turned4(x[0], x[4], x[8], x[12], w(4), eight, w(12));
#pragma unroll
    for (u32 i = 1; i < 4; i++) {
        point low = w(i), high = w(i + 4);
        x[i] = x[i] * low;
        turned4(x[i], x[i + 4], x[i + 8], x[i + 12], high, low * eight, high * eight);
    }
    finish16(x);
}

// The magnitudes of the bins of parity h, of the frame at `samples` (pairs of them). Returns the lane's share of their
// squares. `exchange` and `magnitudes` are the frame's own.
__device__ inline f32 spectrum(const u32* samples, const f64* transform, u32 h, f64* exchange, f32* magnitudes) {
    u32 p = threadIdx.x % 16;
    point x[16];
    load(samples, transform, p, h, x);
#pragma unroll
    for (u32 i = 0; i < 4; i++) fourier4(x[i], x[i + 4], x[i + 8], x[i + 12]);
    finish16(x);
    transpose(x, exchange, p);
    turned16(x, transform, p, h);
    // Z[512 - k] of k = 2 p + h + 32 q is lane p's at 15 - q, for this other p. In lane 0 of pass 0 it is its own, at
    // 16 - q; and Z[512] is Z[0].
    u32 mirror = (16 - h - p) & 15;
    bool own = p + h == 0;
    point w = table_at(transform, HALF_TURNS + 2 * p + h);
    f32 energy = 0.f;
#pragma unroll
    for (u32 q = 0; q < 8; q++) {
        point sent = own ? x[slot((16 - q) & 15)] : x[slot(15 - q)], b;
        b.re = __shfl_sync(0xffffffffu, sent.re, (i32)mirror, 16);
        b.im = __shfl_sync(0xffffffffu, sent.im, (i32)mirror, 16);
        f32 low, high;
        powers_of(x[slot(q)], b, q == 0 ? w : w * root32(q), low, high);
        u32 k = 2 * p + h + 32 * q;
        magnitudes[k] = root_of(low);
        magnitudes[512 - k] = root_of(high);
        energy += low + high;
    }
    if (own) {
        // Its own mirror image.
        point z = x[slot(8)];
        f32 power = (f32)(4.0 * fma(z.re, z.re, z.im * z.im));
        magnitudes[256] = root_of(power);
        energy += power;
    }
    return energy;
}

// bands: first bin and number of bins of each; weights: those of every band's first four bins, then of every band's
// second four, ...
__device__ inline void write_bands(const f32* magnitudes, const u32* bands, const f32* weights, const u64* numbers,
                                   f32* out) {
    u32 n_mels = (u32)numbers[N_MELS];
    f32 floor = (f32)__longlong_as_double((i64)numbers[FLOOR]), ln_floor = __uint_as_float((u32)numbers[LN_FLOOR]);
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
        out[band] = mel > floor ? logf(mel) : ln_floor;
    }
}

__device__ inline void write_padding(const u64* numbers, f32* mel) {
    u32 n_mels = (u32)numbers[N_MELS];
    f32 ln_floor = __uint_as_float((u32)numbers[LN_FLOOR]);
    for (u32 band = threadIdx.x % 16; band < n_mels; band += 16) mel[band] = ln_floor;
}

// Over 16 lanes; all of them have the sum.
__device__ inline f32 sum_of(f32 x) {
#pragma unroll
    for (u32 step = 8; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

// Block b makes frames TILE b ... of all rows' frames: rows have whole tiles, so they are of one row. A grid over
// frames of the longest row would have as many blocks that do nothing as rows are shorter, and a block that makes
// frames knows its row from one load either way. Where `with_energy` is 0, `energy` is not touched.
extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    log_mel(const i16* audio, const u32* lengths, const u32* sample_starts, const u32* frame_starts,
            const u64* numbers, const f64* transform, const u32* bands, const f32* weights, f32* mel, f32* energy,
            u32 with_energy, u32 rows) {
    __shared__ alignas(16) u32 staged[(TILE - 1 + FRAME / HOP) * STAGED_HOP];
    __shared__ f64 exchanges[2 * WARPS][16 * LINE];
    __shared__ f32 spectra[2 * WARPS][MAGNITUDES];
    u32 half = threadIdx.x / 16, lane = threadIdx.x % 16;
    u32 row = row_of(frame_starts, rows, blockIdx.x * TILE), first = blockIdx.x * TILE - __ldg(frame_starts + row);
    f64* exchange = exchanges[half];
    f32* magnitudes = spectra[half];
    u32 length = min_of(lengths[row], room_of(sample_starts, row)), own = length > MIRRORED ? length / HOP : 0;
    u32 valid = own > first ? min_of(TILE, own - first) : 0;
    if (valid > 0) stage(audio + __ldg(sample_starts + row), (i32)length, first, valid, staged);
    if (lane < ZEROS) magnitudes[BINS + lane] = 0.f;
    __syncthreads();
    u32 n_mels = (u32)numbers[N_MELS];
    for (u32 done = 0; done < TILE; done += 2 * WARPS) {
        u32 i = done + half;
        u64 frame = (u64)blockIdx.x * TILE + i;
        f32 total = 0.f;
        // Decided for the block as a whole, although some may have nothing of their own: lanes that might part ways
        // make every exchange between them slower.
        if (done < valid) {
#pragma unroll 1
            for (u32 h = 0; h < 2; h++)
                total += spectrum(staged + i * STAGED_HOP, transform, h, exchange, magnitudes);
            total = sum_of(total);
        }
        __syncwarp();
        if (i < valid) {
            write_bands(magnitudes, bands, weights, numbers, mel + frame * n_mels);
        } else {
            write_padding(numbers, mel + frame * n_mels);
        }
        if (with_energy && lane == 0) energy[frame] = i < valid ? sqrtf(total) : 0.f;
        __syncwarp();
    }
}
