// Sums over rows and over columns, in two steps: partial sums by thread blocks, then their sum. Every sum has a fixed
// order, first within a thread and then a fixed tree, so results are deterministic.

constexpr u32 THREADS = 256;
// Threads of a block along a row and along a column. Each has LOADS_IN_FLIGHT loads of rows in flight.
constexpr u32 ACROSS = 16, DOWN = THREADS / ACROSS;

// The number of iterations of thread `lane` in a loop over n elements with a stride of `lanes`.
__device__ inline u32 iterations(u32 n, u32 lane, u32 lanes) { return (n + lanes - 1 - lane) / lanes; }

// Adds every DOWNth of `rows` rows. All loads of an iteration are in flight at once, also in the last iteration: rows past
// the end are zeros.
template <typename T, u32 N>
__device__ inline void add_rows(const T* __restrict__ from, u32 rows, u32 columns, f32 (&sums)[N]) {
    for (u32 first = 0; first < rows; first += LOADS_IN_FLIGHT * DOWN) {
        uint4 loaded[LOADS_IN_FLIGHT];
#pragma unroll
        for (u32 i = 0; i < LOADS_IN_FLIGHT; i++) {
            const u32 row = first + i * DOWN;
            loaded[i] = make_uint4(0, 0, 0, 0);
            if (row < rows) loaded[i] = *reinterpret_cast<const uint4*>(from + (u64)row * columns);
        }
#pragma unroll
        for (u32 i = 0; i < LOADS_IN_FLIGHT; i++)
            asm volatile("" : "+r"(loaded[i].x), "+r"(loaded[i].y), "+r"(loaded[i].z), "+r"(loaded[i].w));
#pragma unroll
        for (u32 i = 0; i < LOADS_IN_FLIGHT; i++) {
            f32 row[N];
            load_vec(reinterpret_cast<const T*>(&loaded[i]), row);
#pragma unroll
            for (u32 j = 0; j < N; j++) sums[j] += row[j];
        }
    }
}

// partial[chunk][column]: the sum over the rows of a chunk. A thread block has a tile of columns and strides over chunks.
template <typename T, u32 N>
__device__ inline void sum_rows(const T* __restrict__ x, f32* __restrict__ partial, u32 rows, u32 columns,
                                u32 rows_per_chunk) {
    __shared__ f32 shared[DOWN][ACROSS][N + 1];
    const u32 chunks = max_of((rows + rows_per_chunk - 1) / rows_per_chunk, 1u);
    const u32 lane = threadIdx.x % ACROSS, y = threadIdx.x / ACROSS;
    const u32 tile = blockIdx.x * ACROSS * N, column = tile + lane * N;
    const bool vectorised = is_aligned(x) && columns % N == 0;
    for (u32 chunk = blockIdx.y; chunk < chunks; chunk += gridDim.y) {
        const u32 begin = chunk * rows_per_chunk, end = min_of(begin + rows_per_chunk, rows);
        f32 sums[N] = {};
        if (vectorised && column < columns && begin + y < end) {
            add_rows(x + (u64)(begin + y) * columns + column, end - begin - y, columns, sums);
        } else if (!vectorised) {
            for (u32 row = begin + y; row < end; row += DOWN) {
#pragma unroll
                for (u32 j = 0; j < N; j++) {
                    if (column + j < columns) sums[j] += (f32)x[(u64)row * columns + column + j];
                }
            }
        }
#pragma unroll
        for (u32 j = 0; j < N; j++) shared[y][lane][j] = sums[j];
        __syncthreads();
        // Now a thread per column.
        const u32 mine = tile + threadIdx.x;
        if (threadIdx.x < ACROSS * N && mine < columns) {
            f32 sum = 0.f;
#pragma unroll
            for (u32 i = 0; i < DOWN; i++) sum += shared[i][threadIdx.x / N][threadIdx.x % N];
            partial[(u64)chunk * columns + mine] = sum;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    sum_rows_partial_f32(const f32* x, f32* partial, u32 rows, u32 columns, u32 rows_per_chunk) {
    sum_rows<f32, 4>(x, partial, rows, columns, rows_per_chunk);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    sum_rows_partial_bf16(const bf16* x, f32* partial, u32 rows, u32 columns, u32 rows_per_chunk) {
    sum_rows<bf16, 8>(x, partial, rows, columns, rows_per_chunk);
}

// sums[column] = the sum of partial[chunk][column] over the chunks, stored or added to the previous value. A thread block
// has up to 32 columns; with fewer, more of its threads share a column. Its time is the latency of its last read, so there
// are many threads, and the previous value is read together with the partial sums.
constexpr u32 COMBINE_THREADS = 1024;

extern "C" __global__ void __launch_bounds__(COMBINE_THREADS)
    sum_rows_combine_f32(const f32* __restrict__ partial, f32* sums, u32 chunks, u32 columns, u32 accumulate) {
    __shared__ f32 shared[2 * COMBINE_THREADS];
    u32 across = 32;
    while (across / 2 >= columns && across > 1) across /= 2;
    const u32 x = threadIdx.x % across, y = threadIdx.x / across, down = COMBINE_THREADS / across;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = blockIdx.x * across + x;
    // In the end each of the first warps has a column.
    const u32 mine = blockIdx.x * across + warp;
    const bool stores = lane == 0 && warp < across && mine < columns;
    f32 previous = accumulate && stores ? sums[mine] : 0.f;
    f32 sum = column < columns ? sum_strided(partial + column, columns, y, chunks, down) : 0.f;
    shared[y * (across + 1) + x] = sum;
    __syncthreads();
    if (warp >= across) return;
    sum = 0.f;
    for (u32 i = lane; i < down; i += 32) sum += shared[i * (across + 1) + warp];
    sum = warp_sum(sum);
    if (stores) sums[mine] = previous + sum;
}

// The part of a row's sum that thread `lane` of `lanes` adds.
template <typename T, u32 N>
__device__ inline f32 partial_row_sum(const T* __restrict__ row, u32 columns, u32 lane, u32 lanes) {
    f32 sums[N] = {};
    u32 done = 0;
    if (is_aligned(row)) {
        done = columns / N * N;
        const u32 count = iterations(columns / N, lane, lanes);
#pragma unroll 4
        for (u32 k = 0; k < count; k++) {
            f32 x[N];
            load_vec(row + (u64)(lane + k * lanes) * N, x);
#pragma unroll
            for (u32 j = 0; j < N; j++) sums[j] += x[j];
        }
    }
    f32 sum = 0.0f;
#pragma unroll 1
    for (u32 i = done + lane; i < columns; i += lanes) sum += (f32)row[i];
#pragma unroll
    for (u32 j = 0; j < N; j++) sum += sums[j];
    return sum;
}

// Rows of at least as many columns are summed by a thread block each, shorter ones by a warp.
constexpr u32 LONG_ROW = 4096;

template <typename T, u32 N>
__device__ inline void sum_each_row(const T* __restrict__ x, f32* __restrict__ sums, u32 rows, u32 columns) {
    const bool is_long = columns >= LONG_ROW;
    const u32 lanes = is_long ? THREADS : 32, lane = threadIdx.x % lanes;
    for (u64 row = thread_index() / lanes; row < rows; row += thread_count() / lanes) {
        f32 sum = partial_row_sum<T, N>(x + row * columns, columns, lane, lanes);
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
