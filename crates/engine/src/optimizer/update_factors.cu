// The factors of one AdamW update, by one block: the gradient norm, the clipping scale, the bias corrections, and the
// guard against non-finite gradients. In f64, with the roundings of the host kernel; only the sum over the chunks has
// another order.

typedef double f64;

// Exponentiation by squaring. __dmul_rn rounds every multiplication: a fused multiply-add with the subtraction that
// follows would differ from the host kernel.
__device__ inline f64 power(f64 base, u32 n) {
    f64 result = 1.0, square = base;
    for (u32 left = n; left > 0; left >>= 1) {
        if (left & 1) result = __dmul_rn(result, square);
        square = __dmul_rn(square, square);
    }
    return result;
}

__device__ inline u32 saturating_increment(u32 n) { return n == 0xffffffffu ? n : n + 1; }

extern "C" __global__ void __launch_bounds__(THREADS)
    update_factors_f32(const f32* __restrict__ squares, const f64* __restrict__ settings, const f32* __restrict__ lr,
                       const f32* __restrict__ ema_decay, u32* updates, u32* skipped, u32* in_a_row, f32* factors,
                       f32* norm_out, u32 chunks) {
    f64 squared = 0.0;
    for (u32 i = threadIdx.x; i < chunks; i += THREADS) squared += (f64)squares[i];
    squared = block_sum(squared);
    if (threadIdx.x != 0) return;
    const bool proceeds = isfinite(squared);
    if (proceeds) {
        *updates = saturating_increment(*updates);
        *in_a_row = 0;
    } else {
        *skipped = saturating_increment(*skipped);
        *in_a_row = saturating_increment(*in_a_row);
    }
    const f64 beta1 = settings[0], beta2 = settings[1], epsilon = settings[2], weight_decay = settings[3];
    const f64 clip = settings[4], norm = sqrt(squared), before = (f64)*updates - 1.0, rate = (f64)*lr;
    factors[0] = proceeds ? 1.0f : 0.0f;
    factors[1] = (f32)(norm > clip ? clip / norm : 1.0);
    factors[2] = (f32)beta1;
    factors[3] = (f32)(1.0 - beta1);
    factors[4] = (f32)beta2;
    factors[5] = (f32)(1.0 - beta2);
    factors[6] = (f32)(rate / (1.0 - power(beta1, *updates)));
    factors[7] = (f32)(1.0 / sqrt(1.0 - power(beta2, *updates)));
    factors[8] = (f32)epsilon;
    factors[9] = (f32)__dmul_rn(rate, weight_decay);
    // EMA warm-up: after m updates the decay is at most m / (10 + m).
    factors[10] = (f32)fmin((f64)*ema_decay, before / (10.0 + before));
    *norm_out = (f32)norm;
}
