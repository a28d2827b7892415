// Copies `count` columns from column `from` on to column `to`: concatenation and slicing along the last dimension. If
// they are `alone`, the other columns of the output become zero.

struct ColumnMove {
    u32 width, out_width, from, to, count, alone, rows;
};

template <u32 N, typename T> __device__ inline void move_columns(const T* x, T* out, ColumnMove m) {
    u32 first = m.alone ? 0 : m.to, vectors = (m.alone ? m.out_width : m.count) / N;
    u64 all = (u64)m.rows * vectors;
    for (u64 i = thread_index(); i < all; i += thread_count()) {
        u64 row = divide(i, vectors);
        u32 column = first + (u32)(i - row * vectors) * N, moved = column - m.to;
        T* to = out + row * m.out_width + column;
        if (moved < m.count) copy_elements<N>(x + row * m.width + m.from + moved, to); else zero_elements<N>(to);
    }
}

// 16 bytes at a time if all widths and offsets are multiples of that.
template <typename T> __device__ inline void move_all(const T* x, T* out, ColumnMove m) {
    if ((m.width | m.out_width | m.from | m.to | m.count) % VECTOR<T> == 0) {
        move_columns<VECTOR<T>>(x, out, m);
    } else {
        move_columns<1>(x, out, m);
    }
}

#define KERNELS(T)                                                                                             \
    extern "C" __global__ void __launch_bounds__(256)                                                          \
        move_columns_##T(const T* x, T* out, u32 width, u32 out_width, u32 from, u32 to, u32 count, u32 alone, \
                         u32 rows) {                                                                           \
        move_all<T>(x, out, {width, out_width, from, to, count, alone, rows});                                 \
    }

KERNELS(f32)
KERNELS(bf16)
