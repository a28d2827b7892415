// AdamW (Loshchilov and Hutter 2019), with the exponential moving average of the parameters and their bf16 copy in the
// same pass, four parameters a thread. Memory bound: the state of a parameter is read once and written once.
//
// Spans, and the part of them that decays, are multiples of 16 elements, and spans are aligned: there is no remainder.
// The grid has a thread for every four parameters.

struct factors_t {
    f32 proceeds, clip_scale, beta1, one_minus_beta1, beta2, one_minus_beta2;
    f32 step_size, inv_sqrt_bias2, epsilon, decay, ema_decay;
};

template <bool AVERAGE, bool COPY>
__device__ inline void update(const f32* __restrict__ factors, const f32* __restrict__ gradients,
                              f32* __restrict__ parameters, f32* __restrict__ exp_avg, f32* __restrict__ exp_avg_sq,
                              f32* __restrict__ average, bf16* __restrict__ copy, u64 n, u64 decaying) {
    const u64 i = thread_index() * 4;
    if (i >= n) return;
    const factors_t at = *reinterpret_cast<const factors_t*>(factors);
    if (!(at.proceeds > 0.0f)) return;
    f32 g[4], theta[4], m[4], v[4], ema[4];
    load_vec(gradients + i, g);
    load_vec(parameters + i, theta);
    load_vec(exp_avg + i, m);
    load_vec(exp_avg_sq + i, v);
    if constexpr (AVERAGE) load_vec(average + i, ema);
    const f32 decay = i < decaying ? at.decay : 0.0f;
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        f32 clipped = g[j] * at.clip_scale;
        m[j] = at.beta1 * m[j] + at.one_minus_beta1 * clipped;
        v[j] = at.beta2 * v[j] + at.one_minus_beta2 * (clipped * clipped);
        f32 denom = sqrtf(v[j]) * at.inv_sqrt_bias2 + at.epsilon;
        theta[j] = theta[j] - (decay * theta[j] + at.step_size * m[j] / denom);
        if constexpr (AVERAGE) ema[j] = at.ema_decay * ema[j] + (1.0f - at.ema_decay) * theta[j];
    }
    store_vec(parameters + i, theta);
    store_vec(exp_avg + i, m);
    store_vec(exp_avg_sq + i, v);
    if constexpr (AVERAGE) store_vec(average + i, ema);
    if constexpr (COPY) store_vec(copy + i, theta);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    adamw_f32(const f32* factors, const f32* gradients, f32* parameters, f32* exp_avg, f32* exp_avg_sq, u64 n,
              u64 decaying) {
    update<false, false>(factors, gradients, parameters, exp_avg, exp_avg_sq, nullptr, nullptr, n, decaying);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    adamw_average_f32(const f32* factors, const f32* gradients, f32* parameters, f32* exp_avg, f32* exp_avg_sq,
                      f32* average, u64 n, u64 decaying) {
    update<true, false>(factors, gradients, parameters, exp_avg, exp_avg_sq, average, nullptr, n, decaying);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    adamw_compute(const f32* factors, const f32* gradients, f32* parameters, f32* exp_avg, f32* exp_avg_sq, bf16* copy,
                  u64 n, u64 decaying) {
    update<false, true>(factors, gradients, parameters, exp_avg, exp_avg_sq, nullptr, copy, n, decaying);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    adamw_average_compute(const f32* factors, const f32* gradients, f32* parameters, f32* exp_avg, f32* exp_avg_sq,
                          f32* average, bf16* copy, u64 n, u64 decaying) {
    update<true, true>(factors, gradients, parameters, exp_avg, exp_avg_sq, average, copy, n, decaying);
}
