// Rotary position embedding, RoPE (Su et al. 2021), of queries and keys: elements k and k + half of a head form a pair,
// which is rotated by the angle of its frame. A thread rotates N adjacent pairs of a head, or copies N values.

template <u32 N, typename T>
__device__ inline void rotate(const T* x, T* out, const f32* table, Row row, u32 columns, u32 heads, u32 inverse) {
    u32 half = columns / (6 * heads), pairs = 2 * heads * half;
    bool in_place = x == out;
    // Queries and keys in pairs, then the values, which are copied unless the op works in place.
    each_element<N>(row.frames, in_place ? pairs : pairs + columns / 3, [&](u32 frame, u32 i) {
        u64 at = (u64)(row.start + frame) * columns;
        if (i >= pairs) {
            copy_elements<N>(x + at + pairs + i, out + at + pairs + i);
            return;
        }
        u32 head = i / half, k = i - head * half;
        u64 first = at + head * 2 * half + k;
        const f32* angles = table + (u64)frame * 2 * half + k;
        f32 a[N], b[N], cosine[N], sine[N];
        load_elements(x + first, a);
        load_elements(x + first + half, b);
        load_elements(angles, cosine);
        load_elements(angles + half, sine);
#pragma unroll
        for (u32 n = 0; n < N; n++) {
            f32 signed_sine = inverse ? -sine[n] : sine[n], rotated = a[n] * cosine[n] - b[n] * signed_sine;
            b[n] = b[n] * cosine[n] + a[n] * signed_sine;
            a[n] = rotated;
        }
        store_elements(out + first, a);
        store_elements(out + first + half, b);
    });
}

template <typename T>
__device__ inline void rotate_row(const T* x, T* out, const f32* table, const u32* starts, u32 columns, u32 heads,
                                  u32 inverse) {
    Row row(starts, blockIdx.y);
    if (columns / (6 * heads) % VECTOR<T> == 0) {
        rotate<VECTOR<T>>(x, out, table, row, columns, heads, inverse);
    } else {
        rotate<1>(x, out, table, row, columns, heads, inverse);
    }
}

#define KERNELS(T)                                                                                             \
    extern "C" __global__ void __launch_bounds__(256)                                                          \
        rotary_##T(T* out, const f32* table, const u32* starts, u32 rows, u32 columns, u32 heads, u32 inverse, \
                   const T* x) {                                                                               \
        rotate_row<T>(x, out, table, starts, columns, heads, inverse);                                         \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(256)                                                          \
        rotary_in_place_##T(T* out, const f32* table, const u32* starts, u32 rows, u32 columns, u32 heads,     \
                            u32 inverse) {                                                                     \
        rotate_row<T>(out, out, table, starts, columns, heads, inverse);                                       \
    }

KERNELS(f32)
KERNELS(bf16)
