// Embedding lookup, and the gradient of the table without atomics: a block per row of the table searches the ids for
// its row and adds the gradients at those positions in a fixed order, so that results are deterministic.

template <u32 N, typename T>
__device__ inline void gather(const T* table, const i32* ids, T* out, u32 rows, u32 channels, u32 count) {
    u64 vectors = channels / N, all = count * vectors;
    for (u64 i = thread_index(); i < all; i += thread_count()) {
        u64 position = divide(i, vectors), channel = (i - position * vectors) * N;
        u32 id = (u32)ids[position];
        T* to = out + position * channels + channel;
        if (id < rows) copy_elements<N>(table + (u64)id * channels + channel, to); else zero_elements<N>(to);
    }
}

constexpr u32 THREADS = 256, WARPS = THREADS / 32;
// Positions that a block searches at a time: four per thread.
constexpr u32 ROUNDS = 4, SEARCHED = ROUNDS * THREADS;
static_assert(ROUNDS * WARPS == 32, "a warp scans the counts of all warps and rounds");

// Stream compaction by a block: the positions from `first` on, below `count`, whose id is `row`, in order, to `found`.
// Returns their number.
__device__ inline u32 find(const i32* ids, u32 first, u32 count, u32 row, u32* found) {
    __shared__ u32 before[33];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, ballots[ROUNDS];
#pragma unroll
    for (u32 round = 0; round < ROUNDS; round++) {
        u32 position = first + round * THREADS + threadIdx.x;
        ballots[round] = __ballot_sync(0xffffffffu, position < count && (u32)ids[position] == row);
        if (lane == 0) before[round * WARPS + warp] = __popc(ballots[round]);
    }
    __syncthreads();
    if (warp == 0) {
        u32 own = before[lane], sum = own;
#pragma unroll
        for (u32 offset = 1; offset < 32; offset *= 2) {
            u32 other = __shfl_up_sync(0xffffffffu, sum, offset);
            if (lane >= offset) sum += other;
        }
        before[lane] = sum - own;
        if (lane == 31) before[32] = sum;
    }
    __syncthreads();
#pragma unroll
    for (u32 round = 0; round < ROUNDS; round++) {
        u32 at = before[round * WARPS + warp] + __popc(ballots[round] & ((1u << lane) - 1));
        if (ballots[round] >> lane & 1) found[at] = first + round * THREADS + threadIdx.x;
    }
    u32 all = before[32];
    __syncthreads();
    return all;
}

// The gradient of row blockIdx.x of the table, 32 N columns of it: 32 threads a position, eight positions at a time.
template <u32 N, typename T>
__device__ inline void sum_positions(const T* gradient, const i32* ids, f32* out, u32 count, u32 channels,
                                     u32 accumulate) {
    __shared__ u32 found[SEARCHED];
    __shared__ f32 shared[WARPS][N * 32];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x, first_channel = blockIdx.y * 32 * N;
    if (first_channel >= channels) return;
    u32 channel = first_channel + lane * N;
    f32 sum[N] = {};
    for (u32 first = 0; first < count; first += SEARCHED) {
        u32 all = find(ids, first, count, row, found);
        if (channel < channels) {
#pragma unroll 4
            for (u32 i = warp; i < all; i += WARPS) {
                f32 g[N];
                load_elements(gradient + (u64)found[i] * channels + channel, g);
#pragma unroll
                for (u32 n = 0; n < N; n++) sum[n] += g[n];
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 n = 0; n < N; n++) shared[warp][n * 32 + lane] = sum[n];
    __syncthreads();
    for (u32 i = threadIdx.x; i < 32 * N; i += THREADS) {
        u32 to = first_channel + i % 32 * N + i / 32;
        if (to >= channels) continue;
        f32 total = 0.f;
        for (u32 w = 0; w < WARPS; w++) total += shared[w][i];
        f32* at = out + (u64)row * channels + to;
        *at = accumulate ? *at + total : total;
    }
}

// 16 bytes at a time if a row is a multiple of that.
template <typename T>
__device__ inline void gather_rows(const T* table, const i32* ids, T* out, u32 rows, u32 channels, u32 count) {
    if (channels % VECTOR<T> == 0) {
        gather<VECTOR<T>>(table, ids, out, rows, channels, count);
    } else {
        gather<1>(table, ids, out, rows, channels, count);
    }
}

template <typename T>
__device__ inline void sum_gradient(const T* gradient, const i32* ids, f32* out, u32 count, u32 channels,
                                    u32 accumulate) {
    if (channels % VECTOR<T> == 0) {
        sum_positions<VECTOR<T>>(gradient, ids, out, count, channels, accumulate);
    } else {
        sum_positions<1>(gradient, ids, out, count, channels, accumulate);
    }
}

#define KERNELS(T)                                                                                             \
    extern "C" __global__ void __launch_bounds__(256)                                                          \
        embedding_##T(const T* table, const i32* ids, T* out, u32 rows, u32 channels, u32 count) {             \
        gather_rows(table, ids, out, rows, channels, count);                                                   \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
        embedding_gradient_##T(const T* gradient, const i32* ids, f32* out, u32 count, u32 channels, u32 rows, \
                               u32 accumulate) {                                                               \
        sum_gradient(gradient, ids, out, count, channels, accumulate);                                         \
    }

KERNELS(f32)
KERNELS(bf16)
