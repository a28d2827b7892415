// Flash attention (Dao et al. 2022) with online softmax (Milakov & Gimelshein 2018) in f32 on CUDA cores, for the element
// types and head sizes that the tensor-core kernels do not cover. Any number of columns per head.
//
// Work is tiled in TILE queries by TILE keys. A thread computes 4 rows and 2 columns of a score tile, and 4 frames and 8 of
// the WIDTH columns of acc_o. Heads with more than WIDTH columns take several passes, each of which recomputes the scores.

constexpr u32 TILE = 32, WIDTH = 128, THREADS = 128;
// What a thread computes: rows and columns of a score tile, and columns of an output tile.
constexpr u32 ROWS = 4, COLUMNS = 2, OUT_COLUMNS = WIDTH / 16;

typedef f32 ScoreTile[TILE][TILE + 1];

// One head of one row in global memory. Frames past the end read as zeros.
template <typename T> struct HeadMatrix {
    const T* at;
    u64 stride;
    u32 head_dim, end;

    __device__ f32 get(u32 frame, u32 column) const {
        return frame < end && column < head_dim ? (f32)at[frame * stride + column] : 0.0f;
    }
};

// Row `row` of a ragged batch: its first frame, its number of frames, and how many are valid. Lengths outside the row are
// clamped to it.
struct Row {
    u32 start, frames, valid;

    __device__ Row(const u32* starts, const i32* lengths, u32 row) {
        start = __ldg(starts + row);
        frames = __ldg(starts + row + 1) - start;
        valid = min_of((u32)max_of(__ldg(lengths + row), 0), frames);
    }
};

// The rows 4·y.. and columns x, x + 16, ... of a tile that a thread computes.
__device__ inline u32 my_row(u32 i) { return threadIdx.x / 16 * ROWS + i; }
__device__ inline u32 my_column(u32 j) { return threadIdx.x % 16 + 16 * j; }

// c = A·Bᵀ for TILE frames of `a` and TILE frames of `b`.
template <typename T>
__device__ void gemm_nt(f32 (&c)[ROWS][COLUMNS], HeadMatrix<T> a, u32 a_first, HeadMatrix<T> b, u32 b_first,
                        ScoreTile* tiles) {
    for (u32 i = 0; i < ROWS * COLUMNS; i++) c[i / COLUMNS][i % COLUMNS] = 0.0f;
    for (u32 column = 0; column < a.head_dim; column += TILE) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < TILE * TILE; i += THREADS) {
            tiles[0][i / TILE][i % TILE] = a.get(a_first + i / TILE, column + i % TILE);
            tiles[1][i / TILE][i % TILE] = b.get(b_first + i / TILE, column + i % TILE);
        }
        __syncthreads();
#pragma unroll 8
        for (u32 d = 0; d < TILE; d++) {
#pragma unroll
            for (u32 i = 0; i < ROWS * COLUMNS; i++) {
                f32 x = tiles[0][my_row(i / COLUMNS)][d], y = tiles[1][my_column(i % COLUMNS)][d];
                c[i / COLUMNS][i % COLUMNS] += x * y;
            }
        }
    }
}

// c += P·B, or Pᵀ·B where `transposed`, for TILE frames of `b` and WIDTH of its columns from `column` on.
template <typename T>
__device__ void gemm_pb(f32 (&c)[ROWS][OUT_COLUMNS], const ScoreTile& p, bool transposed, HeadMatrix<T> b, u32 first,
                        u32 column, f32 (*b_tile)[WIDTH]) {
    __syncthreads();
    for (u32 i = threadIdx.x; i < TILE * WIDTH; i += THREADS)
        b_tile[i / WIDTH][i % WIDTH] = b.get(first + i / WIDTH, column + i % WIDTH);
    __syncthreads();
#pragma unroll 4
    for (u32 k = 0; k < TILE; k++) {
#pragma unroll
        for (u32 i = 0; i < ROWS; i++) {
            f32 weight = transposed ? p[k][my_row(i)] : p[my_row(i)][k];
#pragma unroll
            for (u32 j = 0; j < OUT_COLUMNS; j++) c[i][j] += weight * b_tile[k][my_column(j)];
        }
    }
}

// Stores the frames that gemm_pb has accumulated in `c`, times `scale`; zeros for padding.
template <typename T>
__device__ void store(const f32 (&c)[ROWS][OUT_COLUMNS], const f32 (&scale)[ROWS], T* to, u64 stride, u32 first,
                      u32 column, u32 head_dim, Row row) {
    for (u32 i = 0; i < ROWS; i++) {
        u32 frame = first + my_row(i);
#pragma unroll
        for (u32 j = 0; j < OUT_COLUMNS; j++) {
            u32 at = column + my_column(j);
            if (frame < row.frames && at < head_dim)
                to[frame * stride + at] = T(frame < row.valid ? c[i][j] * scale[i] : 0.0f);
        }
    }
}

template <u32 N> __device__ inline void clear(f32 (&c)[ROWS][N]) {
#pragma unroll
    for (u32 i = 0; i < ROWS * N; i++) c[i / N][i % N] = 0.0f;
}

// Grid: heads, rows, tiles of the longest row.
template <typename T>
__device__ void attention(u32 heads, u32 head_dim, bool causal, const T* qkv, const u32* starts, const i32* lengths,
                          T* out, f32* lse) {
    __shared__ ScoreTile tiles[3];
    __shared__ f32 b_tile[TILE][WIDTH];
    const Row row(starts, lengths, blockIdx.y);
    const u32 head = blockIdx.x, first = (gridDim.z - 1 - blockIdx.z) * TILE;
    if (first >= row.frames) return;
    const u64 width = (u64)heads * head_dim;
    const T* at = qkv + row.start * 3 * width + (u64)head * head_dim;
    const HeadMatrix<T> q{at, 3 * width, head_dim, row.valid}, k{at + width, 3 * width, head_dim, row.valid};
    const HeadMatrix<T> v{at + 2 * width, 3 * width, head_dim, row.valid};
    const u32 end = first >= row.valid ? 0 : causal ? min_of(row.valid, first + TILE) : row.valid;
    const f32 softmax_scale = 1.0f / sqrtf((f32)head_dim);
    ScoreTile& p = tiles[2];
    u32 column = 0;
    do {
        f32 acc_o[ROWS][OUT_COLUMNS], row_max[ROWS], row_sum[ROWS];
        clear(acc_o);
#pragma unroll
        for (u32 i = 0; i < ROWS; i++) row_max[i] = -__uint_as_float(0x7f800000u), row_sum[i] = 0.0f;
        for (u32 key = 0; key < end; key += TILE) {
            f32 scores[ROWS][COLUMNS];
            gemm_nt(scores, q, first, k, key, tiles);
#pragma unroll
            for (u32 i = 0; i < ROWS; i++) {
                f32 new_max = row_max[i];
#pragma unroll
                for (u32 j = 0; j < COLUMNS; j++) {
                    u32 other = key + my_column(j);
                    bool masked = other >= row.valid || (causal && other > first + my_row(i));
                    scores[i][j] = masked ? -__uint_as_float(0x7f800000u) : scores[i][j] * softmax_scale;
                    new_max = fmaxf(new_max, scores[i][j]);
                }
                for (u32 lane_mask = 8; lane_mask > 0; lane_mask /= 2)
                    new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, lane_mask));
                const f32 correction = expf(row_max[i] - new_max);
                row_max[i] = new_max;
                row_sum[i] *= correction;
#pragma unroll
                for (u32 j = 0; j < COLUMNS; j++) {
                    f32 weight = expf(scores[i][j] - new_max);
                    row_sum[i] += weight;
                    p[my_row(i)][my_column(j)] = weight;
                }
#pragma unroll
                for (u32 j = 0; j < OUT_COLUMNS; j++) acc_o[i][j] *= correction;
            }
            gemm_pb(acc_o, p, false, v, key, column, b_tile);
        }
        f32 inverse_sum[ROWS];
#pragma unroll
        for (u32 i = 0; i < ROWS; i++) {
            f32 sum = row_sum[i];
            for (u32 lane_mask = 8; lane_mask > 0; lane_mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane_mask);
            inverse_sum[i] = 1.0f / sum;
            u32 frame = first + my_row(i);
            if (column == 0 && threadIdx.x % 16 == 0 && frame < row.frames)
                lse[((u64)row.start + frame) * heads + head] = frame < row.valid ? row_max[i] + logf(sum) : 0.0f;
        }
        store(acc_o, inverse_sum, out + row.start * width + (u64)head * head_dim, width, first, column, head_dim, row);
        column += WIDTH;
    } while (column < head_dim);
}

// A score to its probability, and dP to dS, in place.
__device__ inline void softmax_backward(f32& score, f32& dp, bool masked, f32 softmax_scale, f32 lse, f32 delta) {
    score = masked ? 0.0f : expf(score * softmax_scale - lse);
    dp = masked ? 0.0f : score * (dp - delta);
}

// Grid: heads, rows, 2 · tiles of the longest row. As in backward.cu there are blocks that own keys and blocks that own
// queries, so that each sum has one owner.
template <typename T>
__device__ void attention_gradient(u32 heads, u32 head_dim, bool causal, const T* qkv, const u32* starts,
                                   const i32* lengths, const f32* lse, const f32* delta, const T* dout, T* dqkv) {
    __shared__ ScoreTile tiles[4];
    __shared__ f32 b_tile[TILE][WIDTH];
    const Row row(starts, lengths, blockIdx.y);
    const u32 head = blockIdx.x, tile = blockIdx.z / 2;
    const bool owns_keys = blockIdx.z % 2 == 0;
    const u32 first = (owns_keys ? tile : gridDim.z / 2 - 1 - tile) * TILE;
    if (first >= row.frames) return;
    const u64 width = (u64)heads * head_dim, start = row.start;
    const T* at = qkv + start * 3 * width + (u64)head * head_dim;
    const HeadMatrix<T> q{at, 3 * width, head_dim, row.valid}, k{at + width, 3 * width, head_dim, row.valid};
    const HeadMatrix<T> v{at + 2 * width, 3 * width, head_dim, row.valid};
    const HeadMatrix<T> dout_head{dout + start * width + (u64)head * head_dim, width, head_dim, row.valid};
    T* to = dqkv + start * 3 * width + (u64)head * head_dim;
    const f32 softmax_scale = 1.0f / sqrtf((f32)head_dim);
    // The range of the inner loop: queries that attend to these keys, or keys that these queries attend to.
    u32 begin = owns_keys && causal ? first : 0, end = row.valid;
    if (!owns_keys && causal) end = min_of(end, first + TILE);
    if (first >= row.valid) end = 0;
    f32 scales[ROWS], ones[ROWS];
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) scales[i] = softmax_scale, ones[i] = 1.0f;
    for (u32 column = 0; column < head_dim; column += WIDTH) {
        // dK and dV, or dQ alone.
        f32 acc_dqk[ROWS][OUT_COLUMNS], acc_dv[ROWS][OUT_COLUMNS];
        clear(acc_dqk);
        clear(acc_dv);
        for (u32 other = begin; other < end; other += TILE) {
            const u32 query = owns_keys ? other : first, key = owns_keys ? first : other;
            f32 scores[ROWS][COLUMNS], dp[ROWS][COLUMNS];
            gemm_nt(scores, q, query, k, key, tiles);
            gemm_nt(dp, dout_head, query, v, key, tiles);
#pragma unroll
            for (u32 i = 0; i < ROWS; i++) {
                const u32 frame = query + my_row(i);
                const u64 at = (start + frame) * heads + head;
                const f32 row_lse = frame < row.valid ? lse[at] : 0.0f, row_delta = frame < row.valid ? delta[at] : 0.0f;
#pragma unroll
                for (u32 j = 0; j < COLUMNS; j++) {
                    const u32 other_key = key + my_column(j);
                    bool masked = !(frame < row.valid && other_key < row.valid && !(causal && other_key > frame));
                    softmax_backward(scores[i][j], dp[i][j], masked, softmax_scale, row_lse, row_delta);
                    tiles[2][my_row(i)][my_column(j)] = scores[i][j];
                    tiles[3][my_row(i)][my_column(j)] = dp[i][j];
                }
            }
            gemm_pb(acc_dqk, tiles[3], owns_keys, owns_keys ? q : k, other, column, b_tile);
            if (owns_keys) gemm_pb(acc_dv, tiles[2], true, dout_head, other, column, b_tile);
        }
        store(acc_dqk, scales, to + (owns_keys ? width : 0), 3 * width, first, column, head_dim, row);
        if (owns_keys) store(acc_dv, ones, to + 2 * width, 3 * width, first, column, head_dim, row);
    }
}

#define KERNELS(T)                                                                                              \
    extern "C" __global__ void __launch_bounds__(128)                                                           \
        attention_##T(u32 batch, u32 heads, u32 head_dim, u32 causal, const T* qkv, const u32* starts,          \
                      const i32* lengths, T* out, f32* lse) {                                                   \
        attention(heads, head_dim, causal != 0, qkv, starts, lengths, out, lse);                                \
    }                                                                                                           \
    extern "C" __global__ void __launch_bounds__(128)                                                           \
        attention_gradient_##T(u32 batch, u32 heads, u32 head_dim, u32 causal, const T* qkv, const u32* starts, \
                               const i32* lengths, const f32* lse, const f32* delta, const T* dout, T* dqkv) {  \
        attention_gradient(heads, head_dim, causal != 0, qkv, starts, lengths, lse, delta, dout, dqkv);         \
    }

KERNELS(f32)
KERNELS(bf16)
