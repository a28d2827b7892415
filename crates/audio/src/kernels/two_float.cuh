// The arithmetic of the log-mel kernel in pairs of f32, for cards with few f64 units: a number is the unevaluated sum
// hi + lo. Sums are Knuth's TwoSum (The Art of Computer Programming 2, 4.2.2), products Dekker's (1971) with a fused
// multiply-add for the error. Results are not normalized (the pair arithmetic of Lange and Rump, 2020): lo may exceed
// half an ulp of hi after a cancellation, and the absolute error stays near 2^-47 of the largest operand, which is what
// a Fourier transform needs. That saves 3 of 11 operations of a sum and 3 of 7 of a product.
//
// Every operation has an intrinsic, which the compiler neither contracts nor reorders, and square root and logarithm are
// made of such operations: `two_float.rs` computes the same bits.

struct alignas(8) real {
    f32 hi, lo;
};

#define LOG_MEL log_mel_two_float

// Blocks on an SM, for which the register limit is set: as many as fit by their shared memory, but one fewer on sm_80 and
// sm_90. On sm_90 the registers of four blocks would spill.
constexpr u32 BLOCKS = __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 800 ? 3 : 2;

// A constant, known at compile time.
__device__ constexpr real constant(double x) { return {(f32)x, (f32)(x - (double)(f32)x)}; }

// a + b, and the error of that sum, to which `rest` is added.
__device__ inline real two_sum(f32 a, f32 b, f32 rest) {
    f32 sum = __fadd_rn(a, b), b_part = __fsub_rn(sum, a);
    f32 error = __fadd_rn(__fsub_rn(a, __fsub_rn(sum, b_part)), __fsub_rn(b, b_part));
    return {sum, __fadd_rn(error, rest)};
}

__device__ inline real operator-(real a) { return {-a.hi, -a.lo}; }
__device__ inline real operator+(real a, real b) { return two_sum(a.hi, b.hi, __fadd_rn(a.lo, b.lo)); }
__device__ inline real operator-(real a, real b) { return a + -b; }

__device__ inline real operator*(real a, real b) {
    f32 product = __fmul_rn(a.hi, b.hi), error = __fmaf_rn(a.hi, b.hi, -product);
    return {product, __fmaf_rn(a.lo, b.hi, __fmaf_rn(a.hi, b.lo, error))};
}

// a b + c.
__device__ inline real fma(real a, real b, real c) {
    real product = a * b;
    return two_sum(product.hi, c.hi, __fadd_rn(product.lo, c.lo));
}

__device__ inline real half_of(real a) { return {__fmul_rn(0.5f, a.hi), __fmul_rn(0.5f, a.lo)}; }

// 2 a - b.
__device__ inline real twice_minus(real a, real b) {
    return two_sum(__fadd_rn(a.hi, a.hi), -b.hi, __fmaf_rn(2.f, a.lo, -b.lo));
}

// An entry of the twiddle table, at 16 bytes each.
__device__ inline void load_pair(const u64* table, u32 i, real& re, real& im) {
    float4 at = __ldg((const float4*)table + i);
    re = {at.x, at.y}, im = {at.z, at.w};
}

__device__ inline real shuffled(real x, i32 lane) {
    return {__shfl_sync(0xffffffffu, x.hi, lane, 16), __shfl_sync(0xffffffffu, x.lo, lane, 16)};
}

// What is added to an integer before it is given to `windowed`: the bits of 192, whose last bit is 2^-16.
constexpr i32 SAMPLE_BIAS = 0x43400000;

// A biased integer below 2^22, times 2^-16: full scale becomes 1, and the factor 1/2 of the real spectrum is included.
__device__ inline f32 scaled(i32 biased) { return __fsub_rn(__int_as_float(biased), 192.f); }

// far + v apart, for two biased integers. They have no second part.
__device__ inline real windowed(i32 apart, i32 far, real v) {
    f32 x = scaled(apart), product = __fmul_rn(x, v.hi), error = __fmaf_rn(x, v.hi, -product);
    return two_sum(product, scaled(far), __fmaf_rn(x, v.lo, error));
}

// The squared magnitude of a complex number, and four times that. Nothing is subtracted any more: f32 is enough.
__device__ inline f32 power_of(real re, real im) {
    f32 x = __fadd_rn(re.hi, re.lo), y = __fadd_rn(im.hi, im.lo);
    return __fmaf_rn(x, x, __fmul_rn(y, y));
}
__device__ inline f32 four_powers_of(real re, real im) { return __fmul_rn(4.f, power_of(re, im)); }

__device__ inline f32 root_of(f32 power) { return __fsqrt_rn(power); }

// The natural logarithm of a positive, normal number, within 1 ulp: x = 2^k (1 + f) with 1 + f between sqrt(1/2) and
// sqrt(2), then ln(1 + f) = f - f^2 / 2 + s (f^2 / 2 + R), s = f / (2 + f), with the polynomial R of FreeBSD's logf.
__device__ inline f32 ln_of(f32 x) {
    u32 bits = __float_as_uint(x) + (0x3f800000u - 0x3f3504f3u);
    f32 k = (f32)((i32)(bits >> 23) - 127);
    f32 f = __fsub_rn(__uint_as_float((bits & 0x007fffffu) + 0x3f3504f3u), 1.f);
    f32 s = __fdiv_rn(f, __fadd_rn(2.f, f)), z = __fmul_rn(s, s), w = __fmul_rn(z, z);
    f32 odd = __fmul_rn(z, __fmaf_rn(w, 0.28498786688f, 0.66666662693f));
    f32 even = __fmul_rn(w, __fmaf_rn(w, 0.24279078841f, 0.40000972152f));
    f32 half_square = __fmul_rn(0.5f, __fmul_rn(f, f));
    f32 tail = __fmaf_rn(s, __fadd_rn(half_square, __fadd_rn(odd, even)), __fmul_rn(k, 9.0580006145e-6f));
    return __fmaf_rn(k, 0.69313812256f, __fadd_rn(__fsub_rn(tail, half_square), f));
}
