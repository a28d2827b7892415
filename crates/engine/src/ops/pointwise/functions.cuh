// Device functions that generated chains call: exponentials, sigmoid, SiLU (Elfwing et al. 2018), GELU (Hendrycks and
// Gimpel 2016). The generated text before this defines APPROXIMATE: whether the output is bf16, with a precision of
// 2^-9. Functions may then be approximate, and are mostly far more precise than that: with the exact ones GELU takes
// longer than its memory accesses (there is time for 27 instructions an element).

__device__ inline f32 exp_of(f32 x) {
    if constexpr (!APPROXIMATE) return expf(x);
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
}

__device__ inline f32 tanh_of(f32 x) {
    if constexpr (!APPROXIMATE) return tanhf(x);
    f32 y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x, for x >= 1.
__device__ inline f32 reciprocal(f32 x) {
    if constexpr (!APPROXIMATE) return 1.0f / x;
    f32 y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline f32 sigmoid(f32 x) { return reciprocal(1.0f + exp_of(-x)); }

__device__ inline f32 silu_gradient(f32 x, f32 g) {
    f32 s = sigmoid(x);
    return g * s * (1.0f + x * (1.0f - s));
}

// The cumulative distribution function and the density of the standard normal distribution.
__device__ inline f32 normal_cdf(f32 x) {
    if constexpr (!APPROXIMATE) return 0.5f * (1.0f + erff(x * 0.70710678f));
    // The logit of the CDF as an odd polynomial, our own fit: within 0.0017 for |x| up to 5.5, which is a relative
    // error of 0.0017 in the tail and 0.0002 in the middle. Eight instructions, where a series for the tail takes
    // thirteen.
    f32 squared = x * x;
    f32 p = 8.678891e-6f;
    p = p * squared - 9.7016156e-4f;
    p = p * squared + 0.075604218f;
    p = p * squared + 1.5934147f;
    return reciprocal(1.0f + exp_of(-x * p));
}

__device__ inline f32 normal_pdf(f32 x) { return 0.39894228f * exp_of(-0.5f * x * x); }

__device__ inline f32 gelu(f32 x) { return x * normal_cdf(x); }

__device__ inline f32 gelu_gradient(f32 x, f32 g) { return g * (normal_cdf(x) + x * normal_pdf(x)); }

// The tanh form of the CDF. (1 + tanh(y)) / 2 = sigmoid(2 y), which has no cancellation where tanh is near -1.
__device__ inline f32 tanh_cdf(f32 x) { return sigmoid(1.59576912f * (x + 0.044715f * x * x * x)); }

__device__ inline f32 gelu_tanh(f32 x) { return x * tanh_cdf(x); }

__device__ inline f32 gelu_tanh_gradient(f32 x, f32 g) {
    f32 s = tanh_cdf(x), derivative = 1.59576912f * (1.0f + 0.134145f * x * x);
    return g * (s + x * s * (1.0f - s) * derivative);
}
