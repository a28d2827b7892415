// Sums over rows, over pieces and over columns. Every sum has one order: that of the threads, then a fixed tree.
//
// Loops over memory count their rounds beforehand: the compiler then issues the loads of several rounds at once, which it does
// not where each round ends in a comparison.

constexpr u32 THREADS = 256, ROWS_OF_A_PIECE = 128;
// Lanes side by side along a row, and rows that are read at once.
constexpr u32 ACROSS = 16, DOWN = THREADS / ACROSS;

// Rounds in which `lanes` threads, of which this is number `lane`, take n things one each.
__device__ inline u32 rounds_of(u32 n, u32 lane, u32 lanes) { return (n + lanes - 1 - lane) / lanes; }

// Adds up DOWN rows of ACROSS threads with WIDE sums each; the threads of the first row have the totals.
template <u32 WIDE> __device__ inline void add_down(f32 (&sums)[WIDE]) {
    __shared__ f32 shared[DOWN][ACROSS][WIDE + 1];
    const u32 x = threadIdx.x % ACROSS, y = threadIdx.x / ACROSS;
#pragma unroll
    for (u32 j = 0; j < WIDE; j++) shared[y][x][j] = sums[j];
    __syncthreads();
#pragma unroll
    for (u32 half = DOWN / 2; half > 0; half /= 2) {
        if (y < half) {
#pragma unroll
            for (u32 j = 0; j < WIDE; j++) shared[y][x][j] += shared[y + half][x][j];
        }
        __syncthreads();
    }
    if (y == 0) {
#pragma unroll
        for (u32 j = 0; j < WIDE; j++) sums[j] = shared[0][x][j];
    }
    __syncthreads();
}

// partial[piece][column]: the sum over the 128 rows of a piece. A block has a tile of columns of one piece after another.
template <typename T, u32 WIDE>
__device__ inline void sum_pieces(const T* __restrict__ x, f32* __restrict__ partial, u32 rows, u32 columns) {
    const u32 pieces = max_of((rows + ROWS_OF_A_PIECE - 1) / ROWS_OF_A_PIECE, 1u);
    const u32 column = (blockIdx.x * ACROSS + threadIdx.x % ACROSS) * WIDE, y = threadIdx.x / ACROSS;
    const bool wide = is_aligned(x) && is_aligned(partial) && columns % WIDE == 0;
    for (u32 piece = blockIdx.y; piece < pieces; piece += gridDim.y) {
        const u32 begin = piece * ROWS_OF_A_PIECE, end = min_of(begin + ROWS_OF_A_PIECE, rows);
        f32 sums[WIDE] = {};
        if (wide && column < columns) {
            const T* from = x + (u64)(begin + y) * columns + column;
            const u32 rounds = rounds_of(end - begin, y, DOWN);
#pragma unroll 8
            for (u32 round = 0; round < rounds; round++) {
                f32 here[WIDE];
                load_wide(from + (u64)(round * DOWN) * columns, here);
#pragma unroll
                for (u32 j = 0; j < WIDE; j++) sums[j] += here[j];
            }
        } else if (!wide) {
            for (u32 row = begin + y; row < end; row += DOWN) {
#pragma unroll
                for (u32 j = 0; j < WIDE; j++) {
                    if (column + j < columns) sums[j] += (f32)x[(u64)row * columns + column + j];
                }
            }
        }
        add_down(sums);
        if (y > 0) continue;
        f32* to = partial + (u64)piece * columns + column;
        if (wide && column < columns) {
            store_wide(to, sums);
        } else if (!wide) {
#pragma unroll
            for (u32 j = 0; j < WIDE; j++) {
                if (column + j < columns) to[j] = sums[j];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sum_rows_partial_f32(const f32* x, f32* partial, u32 rows, u32 columns) {
    sum_pieces<f32, 4>(x, partial, rows, columns);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sum_rows_partial_bf16(const bf16* x, f32* partial, u32 rows, u32 columns) {
    sum_pieces<bf16, 8>(x, partial, rows, columns);
}

// sums[column] = the sum of partial[piece][column] over the pieces, or that added to what is there. A block has up to 32
// columns; where there are fewer, more of its threads share a column. Its threads are a power of two, up to THREADS.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_rows_combine_f32(const f32* __restrict__ partial, f32* __restrict__ sums, u32 pieces, u32 columns, u32 adds) {
    __shared__ f32 shared[THREADS];
    u32 across = 32;
    while (across / 2 >= columns && across > 1) across /= 2;
    const u32 x = threadIdx.x % across, y = threadIdx.x / across, down = blockDim.x / across;
    for (u32 first = blockIdx.x * across; first < columns; first += gridDim.x * across) {
        const u32 column = first + x;
        f32 sum = 0.0f;
        if (column < columns) {
            const u32 rounds = rounds_of(pieces, y, down);
#pragma unroll 8
            for (u32 round = 0; round < rounds; round++) sum += partial[(u64)(y + round * down) * columns + column];
        }
        shared[threadIdx.x] = sum;
        __syncthreads();
        for (u32 half = down / 2; half > 0; half /= 2) {
            if (y < half) shared[threadIdx.x] += shared[threadIdx.x + half * across];
            __syncthreads();
        }
        if (y == 0 && column < columns) sums[column] = adds ? sums[column] + shared[x] : shared[x];
        __syncthreads();
    }
}

// The sum of a row by `lanes` threads, of which this is number `lane`: its own part.
template <typename T, u32 WIDE>
__device__ inline f32 part_of_row(const T* __restrict__ row, u32 columns, u32 lane, u32 lanes) {
    f32 sums[WIDE] = {};
    u32 done = 0;
    if (is_aligned(row)) {
        done = columns / WIDE * WIDE;
        const u32 rounds = rounds_of(columns / WIDE, lane, lanes);
#pragma unroll 4
        for (u32 round = 0; round < rounds; round++) {
            f32 here[WIDE];
            load_wide(row + (u64)(lane + round * lanes) * WIDE, here);
#pragma unroll
            for (u32 j = 0; j < WIDE; j++) sums[j] += here[j];
        }
    }
    f32 sum = 0.0f;
#pragma unroll 1
    for (u32 i = done + lane; i < columns; i += lanes) sum += (f32)row[i];
#pragma unroll
    for (u32 j = 0; j < WIDE; j++) sum += sums[j];
    return sum;
}

// Rows from here on have a block each, others a warp.
constexpr u32 LONG_ROW = 4096;

template <typename T, u32 WIDE>
__device__ inline void sum_each_row(const T* __restrict__ x, f32* __restrict__ sums, u32 rows, u32 columns) {
    const bool is_long = columns >= LONG_ROW;
    const u32 lanes = is_long ? THREADS : 32, lane = threadIdx.x % lanes;
    for (u64 row = thread_index() / lanes; row < rows; row += thread_count() / lanes) {
        f32 sum = part_of_row<T, WIDE>(x + row * columns, columns, lane, lanes);
        sum = is_long ? block_sum(sum) : warp_sum(sum);
        if (lane == 0) sums[row] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_columns_f32(const f32* x, f32* sums, u32 rows, u32 columns) {
    sum_each_row<f32, 4>(x, sums, rows, columns);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sum_columns_bf16(const bf16* x, f32* sums, u32 rows, u32 columns) {
    sum_each_row<bf16, 8>(x, sums, rows, columns);
}
