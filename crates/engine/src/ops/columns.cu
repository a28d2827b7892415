// Columns in another place: `count` of them from `from` on go to `to`; where they are `alone`, the others become zero.

struct Move {
    u32 width, out_width, from, to, count, alone, rows;
};

template <u32 N, typename T> __device__ inline void move_columns(const T* x, T* out, Move m) {
    u32 first = m.alone ? 0 : m.to, of_a_row = (m.alone ? m.out_width : m.count) / N;
    u64 all = (u64)m.rows * of_a_row;
    for (u64 i = thread_index(); i < all; i += thread_count()) {
        u64 row = divide(i, of_a_row);
        u32 column = first + (u32)(i - row * of_a_row) * N, moved = column - m.to;
        T* to = out + row * m.out_width + column;
        if (moved < m.count) copy<N>(x + row * m.width + m.from + moved, to); else clear<N>(to);
    }
}

#define KERNELS(T)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
        move_columns_##T(const T* x, T* out, u32 width, u32 out_width, u32 from, u32 to, u32 count, u32 alone,        \
                         u32 rows) {                                                                                  \
        Move move = {width, out_width, from, to, count, alone, rows};                                                 \
        if ((width | out_width | from | to | count) % WIDTH<T> == 0) {                                                \
            move_columns<WIDTH<T>>(x, out, move);                                                                     \
        } else {                                                                                                      \
            move_columns<1>(x, out, move);                                                                            \
        }                                                                                                             \
    }

KERNELS(f32)
KERNELS(bf16)
