// Attention in plain f32 arithmetic, for elements and head sizes that tensor cores are not used for. Any number of columns.
//
// Everything is made of squares of SIDE frames: SIDE queries by SIDE keys. Of a square a thread has 4 rows and 2 columns, of
// mixtures 4 frames and 8 of WIDE columns; heads with more columns are done WIDE at a time, with the scores made again.

constexpr u32 SIDE = 32, WIDE = 128, THREADS = 128, ROWS = 4, COLUMNS = 2, SHARES = WIDE / 16;

typedef f32 Square[SIDE][SIDE + 1];

// Columns of one head of one row. Frames past the end count as zeros, whatever lies there.
template <typename T> struct Frames {
    const T* at;
    u64 stride;
    u32 size, end;

    __device__ f32 get(u32 frame, u32 column) const {
        return frame < end && column < size ? (f32)at[frame * stride + column] : 0.0f;
    }
};

struct Row {
    u32 start, frames, valid;

    __device__ Row(const u32* starts, const i32* lengths, u32 row) {
        start = __ldg(starts + row);
        frames = __ldg(starts + row + 1) - start;
        valid = min_of((u32)max_of(__ldg(lengths + row), 0), frames);
    }
};

// A thread's place: rows 4·y.., columns x, x + 16, ...
__device__ inline u32 my_row(u32 i) { return threadIdx.x / 16 * ROWS + i; }
__device__ inline u32 my_column(u32 j) { return threadIdx.x % 16 + 16 * j; }

// Products of SIDE frames of `left` with SIDE frames of `right`.
template <typename T>
__device__ void multiply(f32 (&c)[ROWS][COLUMNS], Frames<T> left, u32 left_first, Frames<T> right, u32 right_first,
                         Square* squares) {
    for (u32 i = 0; i < ROWS * COLUMNS; i++) c[i / COLUMNS][i % COLUMNS] = 0.0f;
    for (u32 column = 0; column < left.size; column += SIDE) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < SIDE * SIDE; i += THREADS) {
            squares[0][i / SIDE][i % SIDE] = left.get(left_first + i / SIDE, column + i % SIDE);
            squares[1][i / SIDE][i % SIDE] = right.get(right_first + i / SIDE, column + i % SIDE);
        }
        __syncthreads();
#pragma unroll 8
        for (u32 d = 0; d < SIDE; d++) {
#pragma unroll
            for (u32 i = 0; i < ROWS * COLUMNS; i++) {
                f32 a = squares[0][my_row(i / COLUMNS)][d], b = squares[1][my_column(i % COLUMNS)][d];
                c[i / COLUMNS][i % COLUMNS] += a * b;
            }
        }
    }
}

// c += `weights` times SIDE frames of `x`, WIDE columns of them from `column` on. With `turned` rows are columns.
template <typename T>
__device__ void mix(f32 (&c)[ROWS][SHARES], const Square& weights, bool turned, Frames<T> x, u32 first, u32 column,
                    f32 (*wide)[WIDE]) {
    __syncthreads();
    for (u32 i = threadIdx.x; i < SIDE * WIDE; i += THREADS)
        wide[i / WIDE][i % WIDE] = x.get(first + i / WIDE, column + i % WIDE);
    __syncthreads();
#pragma unroll 4
    for (u32 k = 0; k < SIDE; k++) {
#pragma unroll
        for (u32 i = 0; i < ROWS; i++) {
            f32 weight = turned ? weights[k][my_row(i)] : weights[my_row(i)][k];
#pragma unroll
            for (u32 j = 0; j < SHARES; j++) c[i][j] += weight * wide[k][my_column(j)];
        }
    }
}

// Writes the frames of `c`, as `mix` leaves them; zeros for padding.
template <typename T>
__device__ void store(const f32 (&c)[ROWS][SHARES], const f32 (&scale)[ROWS], T* to, u64 stride, u32 first, u32 column,
                      u32 size, Row row) {
    for (u32 i = 0; i < ROWS; i++) {
        u32 frame = first + my_row(i);
#pragma unroll
        for (u32 j = 0; j < SHARES; j++) {
            u32 at = column + my_column(j);
            if (frame < row.frames && at < size) to[frame * stride + at] = T(frame < row.valid ? c[i][j] * scale[i] : 0.0f);
        }
    }
}

template <u32 N> __device__ inline void clear(f32 (&c)[ROWS][N]) {
#pragma unroll
    for (u32 i = 0; i < ROWS * N; i++) c[i / N][i % N] = 0.0f;
}

// Grid: heads, rows, squares of the longest row.
template <typename T>
__device__ void attention(u32 heads, u32 size, bool causal, const T* qkv, const u32* starts, const i32* lengths, T* out,
                          f32* sums) {
    __shared__ Square squares[3];
    __shared__ f32 wide[SIDE][WIDE];
    const Row row(starts, lengths, blockIdx.y);
    const u32 head = blockIdx.x, first = (gridDim.z - 1 - blockIdx.z) * SIDE;
    if (first >= row.frames) return;
    const u64 width = (u64)heads * size;
    const T* at = qkv + row.start * 3 * width + (u64)head * size;
    const Frames<T> q{at, 3 * width, size, row.valid}, k{at + width, 3 * width, size, row.valid};
    const Frames<T> v{at + 2 * width, 3 * width, size, row.valid};
    const u32 end = first >= row.valid ? 0 : causal ? min_of(row.valid, first + SIDE) : row.valid;
    const f32 scale = 1.0f / sqrtf((f32)size);
    Square& weights = squares[2];
    u32 column = 0;
    do {
        f32 mixtures[ROWS][SHARES], highest[ROWS], total[ROWS];
        clear(mixtures);
#pragma unroll
        for (u32 i = 0; i < ROWS; i++) highest[i] = -__uint_as_float(0x7f800000u), total[i] = 0.0f;
        for (u32 key = 0; key < end; key += SIDE) {
            f32 scores[ROWS][COLUMNS];
            multiply(scores, q, first, k, key, squares);
#pragma unroll
            for (u32 i = 0; i < ROWS; i++) {
                f32 high = highest[i];
#pragma unroll
                for (u32 j = 0; j < COLUMNS; j++) {
                    u32 seen = key + my_column(j);
                    bool hidden = seen >= row.valid || (causal && seen > first + my_row(i));
                    scores[i][j] = hidden ? -__uint_as_float(0x7f800000u) : scores[i][j] * scale;
                    high = fmaxf(high, scores[i][j]);
                }
                for (u32 apart = 8; apart > 0; apart /= 2) high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, apart));
                const f32 shrunk = expf(highest[i] - high);
                highest[i] = high;
                total[i] *= shrunk;
#pragma unroll
                for (u32 j = 0; j < COLUMNS; j++) {
                    f32 weight = expf(scores[i][j] - high);
                    total[i] += weight;
                    weights[my_row(i)][my_column(j)] = weight;
                }
#pragma unroll
                for (u32 j = 0; j < SHARES; j++) mixtures[i][j] *= shrunk;
            }
            mix(mixtures, weights, false, v, key, column, wide);
        }
        f32 share[ROWS];
#pragma unroll
        for (u32 i = 0; i < ROWS; i++) {
            f32 sum = total[i];
            for (u32 apart = 8; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
            share[i] = 1.0f / sum;
            u32 frame = first + my_row(i);
            if (column == 0 && threadIdx.x % 16 == 0 && frame < row.frames)
                sums[((u64)row.start + frame) * heads + head] = frame < row.valid ? highest[i] + logf(sum) : 0.0f;
        }
        store(mixtures, share, out + row.start * width + (u64)head * size, width, first, column, size, row);
        column += WIDE;
    } while (column < size);
}

// What a query's weights and their gradients are, for its place in a square.
__device__ inline void finish(f32& score, f32& slope, bool seen, f32 scale, f32 sum, f32 level) {
    score = seen ? expf(score * scale - sum) : 0.0f;
    slope = seen ? score * (slope - level) : 0.0f;
}

// Grid: heads, rows, 2 · squares of the longest row: blocks with keys and blocks with queries, so that each sum has one owner.
template <typename T>
__device__ void attention_gradient(u32 heads, u32 size, bool causal, const T* qkv, const u32* starts, const i32* lengths,
                                   const f32* sums, const f32* levels, const T* gradient, T* out) {
    __shared__ Square squares[4];
    __shared__ f32 wide[SIDE][WIDE];
    const Row row(starts, lengths, blockIdx.y);
    const u32 head = blockIdx.x, square = blockIdx.z / 2;
    const bool has_keys = blockIdx.z % 2 == 0;
    const u32 first = (has_keys ? square : gridDim.z / 2 - 1 - square) * SIDE;
    if (first >= row.frames) return;
    const u64 width = (u64)heads * size, start = row.start;
    const T* at = qkv + start * 3 * width + (u64)head * size;
    const Frames<T> q{at, 3 * width, size, row.valid}, k{at + width, 3 * width, size, row.valid};
    const Frames<T> v{at + 2 * width, 3 * width, size, row.valid};
    const Frames<T> g{gradient + start * width + (u64)head * size, width, size, row.valid};
    T* to = out + start * 3 * width + (u64)head * size;
    const f32 scale = 1.0f / sqrtf((f32)size);
    // The other side of the squares: queries that may see these keys, or keys that these queries may see.
    u32 begin = has_keys && causal ? first : 0, end = row.valid;
    if (!has_keys && causal) end = min_of(end, first + SIDE);
    if (first >= row.valid) end = 0;
    f32 scales[ROWS], ones[ROWS];
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) scales[i] = scale, ones[i] = 1.0f;
    for (u32 column = 0; column < size; column += WIDE) {
        // Of keys and values, or of queries and nothing.
        f32 here[ROWS][SHARES], values[ROWS][SHARES];
        clear(here);
        clear(values);
        for (u32 other = begin; other < end; other += SIDE) {
            const u32 query = has_keys ? other : first, key = has_keys ? first : other;
            f32 scores[ROWS][COLUMNS], slopes[ROWS][COLUMNS];
            multiply(scores, q, query, k, key, squares);
            multiply(slopes, g, query, v, key, squares);
#pragma unroll
            for (u32 i = 0; i < ROWS; i++) {
                const u32 frame = query + my_row(i);
                const u64 number = (start + frame) * heads + head;
                const f32 sum = frame < row.valid ? sums[number] : 0.0f, level = frame < row.valid ? levels[number] : 0.0f;
#pragma unroll
                for (u32 j = 0; j < COLUMNS; j++) {
                    const u32 other_key = key + my_column(j);
                    bool seen = frame < row.valid && other_key < row.valid && !(causal && other_key > frame);
                    finish(scores[i][j], slopes[i][j], seen, scale, sum, level);
                    squares[2][my_row(i)][my_column(j)] = scores[i][j];
                    squares[3][my_row(i)][my_column(j)] = slopes[i][j];
                }
            }
            mix(here, squares[3], has_keys, has_keys ? q : k, other, column, wide);
            if (has_keys) mix(values, squares[2], true, g, other, column, wide);
        }
        store(here, scales, to + (has_keys ? width : 0), 3 * width, first, column, size, row);
        if (has_keys) store(values, ones, to + 2 * width, 3 * width, first, column, size, row);
    }
}

#define KERNELS(T)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        attention_##T(u32 batch, u32 heads, u32 size, u32 causal, const T* qkv, const u32* starts, const i32* lengths, \
                      T* out, f32* sums) {                                                                             \
        attention(heads, size, causal != 0, qkv, starts, lengths, out, sums);                                          \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        attention_gradient_##T(u32 batch, u32 heads, u32 size, u32 causal, const T* qkv, const u32* starts,            \
                               const i32* lengths, const f32* sums, const f32* levels, const T* gradient, T* out) {    \
        attention_gradient(heads, size, causal != 0, qkv, starts, lengths, sums, levels, gradient, out);               \
    }

KERNELS(f32)
KERNELS(bf16)
