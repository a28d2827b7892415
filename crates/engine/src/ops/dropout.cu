// Dropout (Srivastava et al. 2014), inverted, with counter-based random numbers (Philox): the backward pass generates
// the same mask again. A thread processes 16 bytes of a row at a time.

template <typename T>
__device__ inline void drop(T* out, const T* x, RowRng rng, Row row, u32 columns, u32 below) {
    constexpr u32 N = VECTOR<T>;
    // 1 / (1 - p): 2^32 over the number of words that are not below.
    f32 scale = below == 0 ? 1.f : 4294967296.f / (f32)(0u - below);
    u64 begin = (u64)row.start * columns, elements = (u64)row.frames * columns;
    out += begin;
    x += begin;
    // Dropped elements are multiplied by 0, so that a NaN stays a NaN.
    auto factor = [&](u32 word) { return word < below ? 0.f : scale; };
    auto whole = [&](u64 at) {
        f32 v[N];
        load_elements(x + at, v);
#pragma unroll
        for (u32 n = 0; n < N; n += 4) {
            Words words = rng.words((u32)((at + n) / 4));
#pragma unroll
            for (u32 k = 0; k < 4; k++) v[n + k] *= factor(words.at[k]);
        }
        store_elements(out + at, v);
    };
    auto part = [&](u64 at, u32 count) {
#pragma unroll
        for (u32 n = 0; n < N; n += 4) {
            Words words = rng.words((u32)((at + n) / 4));
#pragma unroll
            for (u32 k = 0; k < 4; k++)
                if (n + k < count) out[at + n + k] = T((f32)x[at + n + k] * factor(words.at[k]));
        }
    };
    each_vector<N>(elements, begin % N == 0, whole, part);
}

#define KERNELS(T)                                                                                                \
    extern "C" __global__ void __launch_bounds__(256)                                                             \
        dropout_##T(T* out, const u32* seed, const u32* step, const u32* utterances, const u32* starts, u32 draw, \
                    u32 rows, u32 columns, u32 below, const T* x) {                                               \
        drop<T>(out, x, {seed, step, utterances, draw, blockIdx.y}, {starts, blockIdx.y}, columns, below);        \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256)                                                             \
        dropout_in_place_##T(T* out, const u32* seed, const u32* step, const u32* utterances, const u32* starts,  \
                             u32 draw, u32 rows, u32 columns, u32 below) {                                        \
        drop<T>(out, out, {seed, step, utterances, draw, blockIdx.y}, {starts, blockIdx.y}, columns, below);      \
    }

KERNELS(f32)
KERNELS(bf16)
