// Sums over rows and over columns. Every sum has one order: that of the threads, then a fixed tree.

constexpr u32 THREADS = 256;
// Lanes side by side along a row, and rows that are read at once, of which a thread has AT_ONCE under way.
constexpr u32 ACROSS = 16, DOWN = THREADS / ACROSS;

// Rounds in which `lanes` threads, of which this is number `lane`, take n things one each.
__device__ inline u32 rounds_of(u32 n, u32 lane, u32 lanes) { return (n + lanes - 1 - lane) / lanes; }

// Adds up every DOWNth of `rows` rows. All reads of a round are under way at once, those of the last round too: rows
// that are not there are zeros.
template <typename T, u32 WIDE>
__device__ inline void add_rows(const T* __restrict__ from, u32 rows, u32 columns, f32 (&sums)[WIDE]) {
    for (u32 first = 0; first < rows; first += AT_ONCE * DOWN) {
        uint4 held[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            const u32 row = first + i * DOWN;
            held[i] = make_uint4(0, 0, 0, 0);
            if (row < rows) held[i] = *reinterpret_cast<const uint4*>(from + (u64)row * columns);
        }
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++)
            asm volatile("" : "+r"(held[i].x), "+r"(held[i].y), "+r"(held[i].z), "+r"(held[i].w));
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            f32 here[WIDE];
            load_wide(reinterpret_cast<const T*>(&held[i]), here);
#pragma unroll
            for (u32 j = 0; j < WIDE; j++) sums[j] += here[j];
        }
    }
}

// partial[piece][column]: the sum over the rows of a piece. A block has a tile of columns of one piece after another.
template <typename T, u32 WIDE>
__device__ inline void sum_rows(const T* __restrict__ x, f32* __restrict__ partial, u32 rows, u32 columns,
                                u32 of_a_piece) {
    __shared__ f32 shared[DOWN][ACROSS][WIDE + 1];
    const u32 pieces = max_of((rows + of_a_piece - 1) / of_a_piece, 1u);
    const u32 lane = threadIdx.x % ACROSS, y = threadIdx.x / ACROSS;
    const u32 tile = blockIdx.x * ACROSS * WIDE, column = tile + lane * WIDE;
    const bool wide = is_aligned(x) && columns % WIDE == 0;
    for (u32 piece = blockIdx.y; piece < pieces; piece += gridDim.y) {
        const u32 begin = piece * of_a_piece, end = min_of(begin + of_a_piece, rows);
        f32 sums[WIDE] = {};
        if (wide && column < columns && begin + y < end) {
            add_rows(x + (u64)(begin + y) * columns + column, end - begin - y, columns, sums);
        } else if (!wide) {
            for (u32 row = begin + y; row < end; row += DOWN) {
#pragma unroll
                for (u32 j = 0; j < WIDE; j++) {
                    if (column + j < columns) sums[j] += (f32)x[(u64)row * columns + column + j];
                }
            }
        }
#pragma unroll
        for (u32 j = 0; j < WIDE; j++) shared[y][lane][j] = sums[j];
        __syncthreads();
        // A thread for each column now.
        const u32 mine = tile + threadIdx.x;
        if (threadIdx.x < ACROSS * WIDE && mine < columns) {
            f32 sum = 0.f;
#pragma unroll
            for (u32 i = 0; i < DOWN; i++) sum += shared[i][threadIdx.x / WIDE][threadIdx.x % WIDE];
            partial[(u64)piece * columns + mine] = sum;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    sum_rows_partial_f32(const f32* x, f32* partial, u32 rows, u32 columns, u32 of_a_piece) {
    sum_rows<f32, 4>(x, partial, rows, columns, of_a_piece);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    sum_rows_partial_bf16(const bf16* x, f32* partial, u32 rows, u32 columns, u32 of_a_piece) {
    sum_rows<bf16, 8>(x, partial, rows, columns, of_a_piece);
}

// sums[column] = the sum of partial[piece][column] over the pieces, or that added to what is there. A block has up to
// 32 columns; where there are fewer, more of its threads share a column. What counts is how soon the last number is
// read: there are many threads, and what is added to is read with the pieces.
constexpr u32 COMBINING = 1024;

extern "C" __global__ void __launch_bounds__(COMBINING)
    sum_rows_combine_f32(const f32* __restrict__ partial, f32* sums, u32 pieces, u32 columns, u32 adds) {
    __shared__ f32 shared[2 * COMBINING];
    u32 across = 32;
    while (across / 2 >= columns && across > 1) across /= 2;
    const u32 x = threadIdx.x % across, y = threadIdx.x / across, down = COMBINING / across;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = blockIdx.x * across + x;
    // The first warps have a column each in the end.
    const u32 mine = blockIdx.x * across + warp;
    const bool writes = lane == 0 && warp < across && mine < columns;
    f32 before = adds && writes ? sums[mine] : 0.f;
    f32 sum = column < columns ? sum_of_pieces(partial + column, columns, y, pieces, down) : 0.f;
    shared[y * (across + 1) + x] = sum;
    __syncthreads();
    if (warp >= across) return;
    sum = 0.f;
    for (u32 i = lane; i < down; i += 32) sum += shared[i * (across + 1) + warp];
    sum = warp_sum(sum);
    if (writes) sums[mine] = before + sum;
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
