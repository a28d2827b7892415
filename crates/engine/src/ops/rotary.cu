// Rotary positions: a thread turns N neighbouring pairs of a head, or brings N values.

template <u32 N, typename T>
__device__ inline void turn(const T* x, T* out, const f32* table, Row row, u32 columns, u32 heads, u32 back) {
    u32 half = columns / (6 * heads), pairs = 2 * heads * half;
    bool apart = x != out;
    // Queries and keys in pairs; behind them the values, which only move where the result lies elsewhere.
    each_element<N>(row.frames, apart ? pairs + columns / 3 : pairs, [&](u32 frame, u32 i) {
        u64 at = (u64)(row.start + frame) * columns;
        if (i >= pairs) {
            copy<N>(x + at + pairs + i, out + at + pairs + i);
            return;
        }
        u32 head = i / half, k = i - head * half;
        u64 first = at + head * 2 * half + k;
        const f32* angles = table + (u64)frame * 2 * half + k;
        f32 a[N], b[N], cosine[N], sine[N];
        take(x + first, a);
        take(x + first + half, b);
        take(angles, cosine);
        take(angles + half, sine);
#pragma unroll
        for (u32 n = 0; n < N; n++) {
            f32 with = back ? -sine[n] : sine[n], turned = a[n] * cosine[n] - b[n] * with;
            b[n] = b[n] * cosine[n] + a[n] * with;
            a[n] = turned;
        }
        give(out + first, a);
        give(out + first + half, b);
    });
}

template <typename T>
__device__ inline void turn_row(const T* x, T* out, const f32* table, const u32* starts, u32 columns, u32 heads,
                                u32 back) {
    Row row(starts, blockIdx.y);
    if (columns / (6 * heads) % WIDTH<T> == 0) {
        turn<WIDTH<T>>(x, out, table, row, columns, heads, back);
    } else {
        turn<1>(x, out, table, row, columns, heads, back);
    }
}

#define KERNELS(T)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
        rotary_##T(T* out, const f32* table, const u32* starts, u32, u32 columns, u32 heads, u32 back, const T* x) {  \
        turn_row<T>(x, out, table, starts, columns, heads, back);                                                     \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
        rotary_in_place_##T(T* out, const f32* table, const u32* starts, u32, u32 columns, u32 heads, u32 back) {     \
        turn_row<T>(out, out, table, starts, columns, heads, back);                                                   \
    }

KERNELS(f32)
KERNELS(bf16)
