// AdamW, the moving average and the copy in bf16, four parameters a thread. Bound by memory: what is kept for a parameter is
// read once and written once.
//
// Spans and the part that decays are multiples of 16 elements, and spans are aligned: groups of four are whole. The grid has
// a thread for each.

struct factors {
    f32 proceeds, shorten, beta1, new1, beta2, new2, step, root_scale, epsilon, decay, average;
};

template <bool AVERAGE, bool COPY>
__device__ inline void update(const f32* __restrict__ given, const f32* __restrict__ gradients, f32* __restrict__ parameters,
                              f32* __restrict__ first, f32* __restrict__ second, f32* __restrict__ average,
                              bf16* __restrict__ copy, u64 n, u64 decaying) {
    const u64 i = thread_index() * 4;
    if (i >= n) return;
    const factors at = *reinterpret_cast<const factors*>(given);
    if (!(at.proceeds > 0.0f)) return;
    f32 g[4], p[4], m[4], v[4], mean[4];
    load_vec(gradients + i, g);
    load_vec(parameters + i, p);
    load_vec(first + i, m);
    load_vec(second + i, v);
    if constexpr (AVERAGE) load_vec(average + i, mean);
    const f32 decay = i < decaying ? at.decay : 0.0f;
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        f32 gradient = g[j] * at.shorten;
        m[j] = at.beta1 * m[j] + at.new1 * gradient;
        v[j] = at.beta2 * v[j] + at.new2 * (gradient * gradient);
        f32 size = sqrtf(v[j]) * at.root_scale + at.epsilon;
        p[j] = p[j] - (decay * p[j] + at.step * m[j] / size);
        if constexpr (AVERAGE) mean[j] = at.average * mean[j] + (1.0f - at.average) * p[j];
    }
    store_vec(parameters + i, p);
    store_vec(first + i, m);
    store_vec(second + i, v);
    if constexpr (AVERAGE) store_vec(average + i, mean);
    if constexpr (COPY) store_vec(copy + i, p);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    adamw_f32(const f32* given, const f32* gradients, f32* parameters, f32* first, f32* second, u64 n, u64 decaying) {
    update<false, false>(given, gradients, parameters, first, second, nullptr, nullptr, n, decaying);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    adamw_average_f32(const f32* given, const f32* gradients, f32* parameters, f32* first, f32* second, f32* average, u64 n,
                      u64 decaying) {
    update<true, false>(given, gradients, parameters, first, second, average, nullptr, n, decaying);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    adamw_compute(const f32* given, const f32* gradients, f32* parameters, f32* first, f32* second, bf16* copy, u64 n,
                  u64 decaying) {
    update<false, true>(given, gradients, parameters, first, second, nullptr, copy, n, decaying);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    adamw_average_compute(const f32* given, const f32* gradients, f32* parameters, f32* first, f32* second, f32* average,
                          bf16* copy, u64 n, u64 decaying) {
    update<true, true>(given, gradients, parameters, first, second, average, copy, n, decaying);
}
