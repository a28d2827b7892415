// The arithmetic of the log-mel kernel in f64. `two_float.cuh` has the same functions for cards with few f64 units.

typedef double f64;
typedef f64 real;

#define LOG_MEL log_mel

// Blocks that fit on an SM by their shared memory. The register limit is set for as many.
constexpr u32 BLOCKS = __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 800 ? 4 : 2;

// A constant, known at compile time.
__device__ constexpr real constant(f64 x) { return x; }

__device__ inline real half_of(real a) { return 0.5 * a; }

// 2 a - b.
__device__ inline real twice_minus(real a, real b) { return fma(2.0, a, -b); }

// An entry of the twiddle table, at 16 bytes each.
__device__ inline void load_pair(const u64* table, u32 i, real& re, real& im) {
    double2 at = __ldg((const double2*)table + i);
    re = at.x, im = at.y;
}

__device__ inline real shuffled(real x, i32 lane) { return __shfl_sync(0xffffffffu, x, lane, 16); }

// What is added to an integer before it is given to `windowed`.
constexpr i32 SAMPLE_BIAS = (i32)0x80000000;

// A biased integer, times 2^-16: full scale becomes 1, and the factor 1/2 of the real spectrum is included.
__device__ inline real scaled(i32 biased) {
    // The bits of 2^36 plus the integer, minus the constant part: exact, and four times as fast as a conversion.
    return __hiloint2double(0x42300000, biased) - 68719509504.0;
}

// far + v apart, for two biased integers.
__device__ inline real windowed(i32 apart, i32 far, real v) { return fma(scaled(apart), v, scaled(far)); }

// The squared magnitude of a complex number, and four times that.
__device__ inline f32 power_of(real re, real im) { return (f32)fma(re, re, im * im); }
__device__ inline f32 four_powers_of(real re, real im) { return (f32)(4.0 * fma(re, re, im * im)); }

// Within 1 ulp.
__device__ inline f32 root_of(f32 power) {
    f32 root;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(power));
    return root;
}

__device__ inline f32 ln_of(f32 x) { return logf(x); }
