// The numbers of one update, by one block. In f64, and each number rounded as the twin rounds it; only the sum over the
// pieces has another order.

// By squaring. Products are rounded one by one: fused with what is subtracted afterwards they would differ from the twin's.
__device__ inline double power(double base, u32 n) {
    double result = 1.0, square = base;
    for (u32 left = n; left > 0; left >>= 1) {
        if (left & 1) result = __dmul_rn(result, square);
        square = __dmul_rn(square, square);
    }
    return result;
}

__device__ inline u32 one_more(u32 n) { return n == 0xffffffffu ? n : n + 1; }

extern "C" __global__ void __launch_bounds__(THREADS)
    decide_update_f32(const f32* __restrict__ squares, const double* __restrict__ settings, const f32* __restrict__ lr,
                      const f32* __restrict__ average_decay, u32* updates, u32* skipped, u32* in_a_row, f32* factors,
                      f32* norm_out, u32 pieces) {
    double squared = 0.0;
    for (u32 i = threadIdx.x; i < pieces; i += THREADS) squared += (double)squares[i];
    squared = block_sum(squared);
    if (threadIdx.x != 0) return;
    const bool proceeds = isfinite(squared);
    if (proceeds) {
        *updates = one_more(*updates);
        *in_a_row = 0;
    } else {
        *skipped = one_more(*skipped);
        *in_a_row = one_more(*in_a_row);
    }
    const double beta1 = settings[0], beta2 = settings[1], epsilon = settings[2], weight_decay = settings[3];
    const double clip = settings[4], norm = sqrt(squared), before = (double)*updates - 1.0, rate = (double)*lr;
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
    // A run that has made m updates keeps at most m / (10 + m) of its average.
    factors[10] = (f32)fmin((double)*average_decay, before / (10.0 + before));
    *norm_out = (f32)norm;
}
