// Noise: a standard normal number per element, by the Box-Muller transform (Box & Muller 1958) of Philox words, and one
// uniform number per row.

// The Box-Muller transform of four words.
__device__ inline void normals(Words words, f32 (&out)[4]) {
#pragma unroll
    for (u32 k = 0; k < 4; k += 2) {
        f32 radius = sqrtf(-2.f * logf(unit(words.at[k]))), sine, cosine;
        sincospif(2.f * unit(words.at[k + 1]), &sine, &cosine);
        out[k] = radius * cosine;
        out[k + 1] = radius * sine;
    }
}

template <typename T> __device__ inline void fill(T* out, RowRng rng, Row row, u32 columns) {
    constexpr u32 N = VECTOR<T>;
    u64 begin = (u64)row.start * columns, elements = (u64)row.frames * columns;
    out += begin;
    auto whole = [&](u64 at) {
        f32 v[N];
#pragma unroll
        for (u32 n = 0; n < N; n += 4) {
            f32 four[4];
            normals(rng.words((u32)((at + n) / 4)), four);
#pragma unroll
            for (u32 k = 0; k < 4; k++) v[n + k] = four[k];
        }
        store_elements(out + at, v);
    };
    auto part = [&](u64 at, u32 count) {
#pragma unroll
        for (u32 n = 0; n < N; n += 4) {
            f32 four[4];
            normals(rng.words((u32)((at + n) / 4)), four);
#pragma unroll
            for (u32 k = 0; k < 4; k++)
                if (n + k < count) out[at + n + k] = T(four[k]);
        }
    };
    each_vector<N>(elements, begin % N == 0, whole, part);
}

template <typename T>
__device__ inline void uniform(T* out, const u32* seed, const u32* step, const u32* utterances, u32 draw, u32 rows) {
    u32 row = (u32)thread_index();
    if (row < rows) out[row] = T(unit(RowRng(seed, step, utterances, draw, row).words(0).at[0]));
}

#define KERNELS(T)                                                                                                \
    extern "C" __global__ void __launch_bounds__(256)                                                             \
        noise_##T(T* out, const u32* seed, const u32* step, const u32* utterances, const u32* starts, u32 draw,   \
                  u32 rows, u32 columns) {                                                                        \
        fill<T>(out, RowRng(seed, step, utterances, draw, blockIdx.y), Row(starts, blockIdx.y), columns);         \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(32)                                                              \
        uniform_##T(T* out, const u32* seed, const u32* step, const u32* utterances, const u32* starts, u32 draw, \
                    u32 rows) {                                                                                   \
        uniform<T>(out, seed, step, utterances, draw, rows);                                                      \
    }

KERNELS(f32)
KERNELS(bf16)
