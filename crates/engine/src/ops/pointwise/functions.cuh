// What the functions of a chain are made of. The generated text says before it whether the chain is ROUGH: its result is
// stored as bf16, 1 in 2^9. Then a function may be as good as that, and is mostly far better:
// with the exact ones GELU takes longer than its memory does (27 instructions an element is all there is time for).

__device__ inline f32 exp_of(f32 x) {
    if constexpr (!ROUGH) return expf(x);
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
}

__device__ inline f32 tanh_of(f32 x) {
    if constexpr (!ROUGH) return tanhf(x);
    f32 y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// One over what is at least 1.
__device__ inline f32 one_over(f32 x) {
    if constexpr (!ROUGH) return 1.0f / x;
    f32 y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline f32 sigmoid(f32 x) { return one_over(1.0f + exp_of(-x)); }

__device__ inline f32 silu_gradient(f32 x, f32 g) {
    f32 s = sigmoid(x);
    return g * s * (1.0f + x * (1.0f - s));
}

// The normal distribution: how much of it is below x, and its density there.
__device__ inline f32 below(f32 x) {
    if constexpr (!ROUGH) return 0.5f * (1.0f + erff(x * 0.70710678f));
    // The logit of it is nearly an odd polynomial: to 0.0017 for |x| up to 5.5, which is 0.0017 of the tail and 0.0002 of
    // the middle; ours. Eight instructions, where a series for the tail takes thirteen.
    f32 squared = x * x;
    f32 p = 8.678891e-6f;
    p = p * squared - 9.7016156e-4f;
    p = p * squared + 0.075604218f;
    p = p * squared + 1.5934147f;
    return one_over(1.0f + exp_of(-x * p));
}

__device__ inline f32 density(f32 x) { return 0.39894228f * exp_of(-0.5f * x * x); }

__device__ inline f32 gelu(f32 x) { return x * below(x); }

__device__ inline f32 gelu_gradient(f32 x, f32 g) { return g * (below(x) + x * density(x)); }

// (1 + tanh(y)) / 2 is sigmoid(2y), which keeps its digits where tanh is near -1.
__device__ inline f32 bent(f32 x) { return sigmoid(1.59576912f * (x + 0.044715f * x * x * x)); }

__device__ inline f32 gelu_tanh(f32 x) { return x * bent(x); }

__device__ inline f32 gelu_tanh_gradient(f32 x, f32 g) {
    f32 s = bent(x), slope = 1.59576912f * (1.0f + 0.134145f * x * x);
    return g * (s + x * s * (1.0f - s) * slope);
}
