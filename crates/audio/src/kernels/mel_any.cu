// Log-mel spectrogram and frame energies of int16 samples with any settings: a short-time Fourier transform with a Hann
// window and reflect padding, then a mel filterbank. `mel.cu` is several times faster for the one geometry it supports.
//
// The transform of n_fft real samples is a complex FFT of half the size, of z[n] = x[2n] + i x[2n + 1], with Stockham's
// self-sorting algorithm (Cochran et al. 1967; in shared memory: Govindaraju et al. 2008) in radices 4, 2, 3 and 5. It is in
// f64: one f32 does not hold the error bounds. One block per frame, and a few butterflies per thread and pass.
//
// Results do not depend on the order of threads. `on_device/model_any.rs` follows this file on the host.

typedef double f64;

constexpr u32 MAX_THREADS = 256;
// The least length of a buffer, in complex numbers: the second one holds spectrum and sums in the end.
constexpr u32 MIN_BUFFER = 16;
// Zeros after the last bin, because bands are read four bins at a time.
constexpr u32 ZEROS = 3;

// Indices into the packed settings.
constexpr u32 N_MELS = 4, FLOOR = 7, LOG_FLOOR = 15, SPECTRUM = 18, POWER_EPSILON = 19, LOG_BASE = 22, TOP_RANGE = 23,
              SHIFT = 24, SCALE = 25;

struct alignas(16) complex {
    f64 re, im;
};

__device__ inline f64 setting(const u64* settings, u32 i) { return __longlong_as_double((i64)settings[i]); }
__device__ inline f32 log_floor_of(const u64* settings) { return __uint_as_float((u32)settings[LOG_FLOOR]); }

__device__ inline complex operator+(complex a, complex b) { return {a.re + b.re, a.im + b.im}; }
__device__ inline complex operator-(complex a, complex b) { return {a.re - b.re, a.im - b.im}; }
__device__ inline complex operator*(f64 a, complex b) { return {a * b.re, a * b.im}; }
__device__ inline complex operator*(complex a, complex w) {
    return {fma(a.re, w.re, -(a.im * w.im)), fma(a.re, w.im, a.im * w.re)};
}

// -i a.
__device__ inline complex times_minus_i(complex a) { return {a.im, -a.re}; }

__device__ inline void dft(complex (&v)[2]) {
    complex a = v[0];
    v[0] = a + v[1];
    v[1] = a - v[1];
}

__device__ inline void dft(complex (&v)[3]) {
    const f64 sin60 = 0.86602540378443864676;
    complex s = v[1] + v[2], d = times_minus_i(sin60 * (v[1] - v[2])), m = v[0] - 0.5 * s;
    v[0] = v[0] + s;
    v[1] = m + d;
    v[2] = m - d;
}

__device__ inline void dft(complex (&v)[4]) {
    complex s = v[0] + v[2], t = v[0] - v[2], u = v[1] + v[3], d = times_minus_i(v[1] - v[3]);
    v[0] = s + u;
    v[1] = t + d;
    v[2] = s - u;
    v[3] = t - d;
}

__device__ inline void dft(complex (&v)[5]) {
    const f64 cos72 = 0.30901699437494742410, cos144 = -0.80901699437494742410;
    const f64 sin72 = 0.95105651629515357212, sin144 = 0.58778525229247312917;
    complex s1 = v[1] + v[4], s2 = v[2] + v[3], d1 = v[1] - v[4], d2 = v[2] - v[3];
    complex m1 = v[0] + (cos72 * s1 + cos144 * s2), m2 = v[0] + (cos144 * s1 + cos72 * s2);
    complex n1 = times_minus_i(sin72 * d1 + sin144 * d2), n2 = times_minus_i(sin144 * d1 - sin72 * d2);
    v[0] = v[0] + (s1 + s2);
    v[1] = m1 + n1;
    v[2] = m2 + n2;
    v[3] = m2 - n2;
    v[4] = m1 - n1;
}

// One pass of a transform of n complex numbers, in radix R, after passes whose radices have the product `done`. `roots`
// holds the powers of exp(-2 pi i / 2 n). Block-wide; `to` is complete when it returns.
template <u32 R>
__device__ inline void pass(const complex* from, complex* to, const double2* roots, u32 n, u32 done) {
    u32 butterflies = n / R, step = 2 * (butterflies / done);
    for (u32 j = threadIdx.x; j < butterflies; j += blockDim.x) {
        u32 k = j % done;
        complex v[R];
        v[0] = from[j];
#pragma unroll
        for (u32 i = 1; i < R; i++) {
            double2 w = __ldg(roots + k * i * step);
            v[i] = from[j + i * butterflies] * complex{w.x, w.y};
        }
        dft(v);
        u32 first = (j - k) * R + k;
#pragma unroll
        for (u32 i = 0; i < R; i++) to[first + i * done] = v[i];
    }
    __syncthreads();
}

// Sample i of the frame that begins at sample `start` of its row, times the window.
__device__ inline f64 windowed(const i16* row, i32 length, i32 start, const f64* window, u32 i) {
    i32 at = start + (i32)i;
    if (at < 0) at = -at;
    if (at >= length) at = 2 * (length - 1) - at;
    return (f64)row[at] * __ldg(window + i);
}

// The power of bin k <= n of the real transform, from the complex one.
__device__ inline f64 power_of(const complex* z, const double2* roots, u32 n, u32 k) {
    complex a = z[k == n ? 0 : k], b = z[k == 0 ? 0 : n - k];
    double2 root = __ldg(roots + k);
    complex even = {a.re + b.re, a.im - b.im}, odd = {a.im + b.im, b.re - a.re};
    complex x = even + odd * complex{root.x, root.y};
    return 0.25 * fma(x.re, x.re, x.im * x.im);
}

// What follows the logarithm.
__device__ inline f32 shifted_and_scaled(const u64* settings, f32 log) {
    return (log + (f32)setting(settings, SHIFT)) * (f32)setting(settings, SCALE);
}

// The mel filterbank and the logarithm; the weights are in the order of `mel.cu`. If there is a top range, shift and scale
// are left to `normalize_log_mel`.
__device__ inline void write_bands(const f32* bins, const u32* bands, const f32* weights, const u64* settings, f32* out) {
    u32 n_mels = (u32)settings[N_MELS];
    f32 floor = (f32)setting(settings, FLOOR);
    bool decimal = settings[LOG_BASE] != 0, last = isinf(setting(settings, TOP_RANGE));
    for (u32 band = threadIdx.x; band < n_mels; band += blockDim.x) {
        uint2 span = __ldg((const uint2*)bands + band);
        const float4* four = (const float4*)weights + band;
        const f32 *here = bins + span.x, *end = here + span.y;
        f32 mel = 0.f;
        for (; here < end; here += 4, four += n_mels) {
            float4 w = __ldg(four);
            mel = fmaf(w.w, here[3], fmaf(w.z, here[2], fmaf(w.y, here[1], fmaf(w.x, here[0], mel))));
        }
        f32 log = mel > floor ? (decimal ? log10f(mel) : logf(mel)) : log_floor_of(settings);
        out[band] = last ? shifted_and_scaled(settings, log) : log;
    }
}

// Block b computes frame b of the frames of all rows. It has dynamic shared memory for two buffers of complex numbers, each
// as long as the transform. If `with_energy` is 0, `energy` is not accessed.
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    log_mel_any(const i16* audio, const u32* lengths, const u32* sample_starts, const u32* frame_starts,
                const u64* settings, const u64* twiddles, const u32* bands, const f32* weights, f32* mel, f32* energy,
                u32 with_energy, u32 rows) {
    extern __shared__ __align__(16) u8 memory[];
    Geometry g = geometry_of(settings);
    u32 n = g.frame / 2, n_mels = (u32)settings[N_MELS], tid = threadIdx.x;
    u32 row = row_of(frame_starts, rows, blockIdx.x), frame = blockIdx.x - __ldg(frame_starts + row);
    u32 length = min_of(lengths[row], row_capacity(sample_starts, row));
    u32 row_frames = length >= g.min_samples ? length / g.hop + g.extra_frames : 0;
    f32* out = mel + (u64)blockIdx.x * n_mels;
    if (frame >= row_frames) {
        f32 silence = shifted_and_scaled(settings, log_floor_of(settings));
        for (u32 band = tid; band < n_mels; band += blockDim.x) out[band] = silence;
        if (with_energy && tid == 0) energy[blockIdx.x] = 0.f;
        return;
    }
    complex *from = (complex*)memory, *to = from + (n < MIN_BUFFER ? MIN_BUFFER : n);
    const double2* roots = (const double2*)twiddles;
    const f64* window = (const f64*)(roots + g.frame);
    const i16* samples = audio + __ldg(sample_starts + row);
    // Below 2^31: a row has at most 2^30 samples.
    i32 start = (i32)(frame * g.hop) - (i32)g.pad;
    for (u32 i = tid; i < n; i += blockDim.x) {
        from[i].re = windowed(samples, (i32)length, start, window, 2 * i);
        from[i].im = windowed(samples, (i32)length, start, window, 2 * i + 1);
    }
    __syncthreads();
    for (u32 done = 1; done < n;) {
        u32 rest = n / done, radix = rest % 4 == 0 ? 4 : rest % 2 == 0 ? 2 : rest % 3 == 0 ? 3 : 5;
        if (radix == 4) {
            pass<4>(from, to, roots, n, done);
        } else if (radix == 2) {
            pass<2>(from, to, roots, n, done);
        } else if (radix == 3) {
            pass<3>(from, to, roots, n, done);
        } else {
            pass<5>(from, to, roots, n, done);
        }
        complex* filled = to;
        to = from, from = filled;
        done *= radix;
    }
    // The transform is in `from`. The other buffer takes a sum per warp, then the bins.
    f64* sums = (f64*)to;
    f32* bins = (f32*)(sums + MAX_THREADS / 32);
    bool root = settings[SPECTRUM] == 0;
    f64 epsilon = setting(settings, POWER_EPSILON), sum = 0.0;
    for (u32 k = tid; k <= n; k += blockDim.x) {
        f64 power = power_of(from, roots, n, k);
        f32 value = (f32)(power + epsilon);
        bins[k] = root ? sqrtf(value) : value;
        sum += power;
    }
    if (tid < ZEROS) bins[n + 1 + tid] = 0.f;
    sum = warp_sum(sum);
    if (tid % 32 == 0) sums[tid / 32] = sum;
    __syncthreads();
    write_bands(bins, bands, weights, settings, out);
    if (with_energy && tid == 0) {
        f64 total = 0.0;
        for (u32 warp = 0; warp < blockDim.x / 32; warp++) total += sums[warp];
        energy[blockIdx.x] = (f32)sqrt(total);
    }
}

// The last steps of settings with a top range, in place. Block b takes row b: the maximum of its logarithms, then the lower
// limit, shift and scale. Padding becomes what silence is beside the row's frames.
extern "C" __global__ void __launch_bounds__(1024)
    normalize_log_mel(const u32* lengths, const u32* sample_starts, const u32* frame_starts, const u64* settings, f32* mel,
                      u32 rows) {
    __shared__ f32 warps[32];
    Geometry g = geometry_of(settings);
    u32 row = blockIdx.x, tid = threadIdx.x;
    if (row >= rows) return;
    u32 length = min_of(lengths[row], row_capacity(sample_starts, row)), room = row_capacity(frame_starts, row);
    u32 row_frames = length >= g.min_samples ? length / g.hop + g.extra_frames : 0;
    u64 n_mels = settings[N_MELS], own = min_of(row_frames, room) * n_mels, all = room * n_mels;
    f32* values = mel + __ldg(frame_starts + row) * n_mels;
    f32 log_floor = log_floor_of(settings), maximum = log_floor;
    for (u64 i = tid; i < own; i += blockDim.x) maximum = fmaxf(maximum, values[i]);
    maximum = warp_max(maximum);
    if (tid % 32 == 0) warps[tid / 32] = maximum;
    __syncthreads();
    for (u32 warp = 0; warp < blockDim.x / 32; warp++) maximum = fmaxf(maximum, warps[warp]);
    f32 lowest = maximum - (f32)setting(settings, TOP_RANGE);
    for (u64 i = tid; i < all; i += blockDim.x) {
        f32 log = i < own ? values[i] : log_floor;
        values[i] = shifted_and_scaled(settings, fmaxf(log, lowest));
    }
}
