// Rows of a table, picked by number; and the gradient of the table: each of its rows looks for where it was picked.

template <u32 N, typename T>
__device__ inline void pick(const T* table, const i32* ids, T* out, u32 rows, u32 channels, u32 count) {
    u64 of_a_row = channels / N, all = count * of_a_row;
    for (u64 i = thread_index(); i < all; i += thread_count()) {
        u64 place = divide(i, of_a_row), channel = (i - place * of_a_row) * N;
        u32 id = (u32)ids[place];
        T* to = out + place * channels + channel;
        if (id < rows) copy<N>(table + (u64)id * channels + channel, to); else clear<N>(to);
    }
}

constexpr u32 THREADS = 256, WARPS = THREADS / 32;
// Places that are looked at together: four by each thread.
constexpr u32 ROUNDS = 4, LOOKED = ROUNDS * THREADS;
static_assert(ROUNDS * WARPS == 32, "a warp adds up what all warps found in all rounds");

// Those of `count` places from `first` on whose id is `row`, in order, to `found`. Returns their number. By a block.
__device__ inline u32 find(const i32* ids, u32 first, u32 count, u32 row, u32* found) {
    __shared__ u32 before[33];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, votes[ROUNDS];
#pragma unroll
    for (u32 round = 0; round < ROUNDS; round++) {
        u32 place = first + round * THREADS + threadIdx.x;
        votes[round] = __ballot_sync(0xffffffffu, place < count && (u32)ids[place] == row);
        if (lane == 0) before[round * WARPS + warp] = __popc(votes[round]);
    }
    __syncthreads();
    if (warp == 0) {
        u32 own = before[lane], sum = own;
#pragma unroll
        for (u32 apart = 1; apart < 32; apart *= 2) {
            u32 other = __shfl_up_sync(0xffffffffu, sum, apart);
            if (lane >= apart) sum += other;
        }
        before[lane] = sum - own;
        if (lane == 31) before[32] = sum;
    }
    __syncthreads();
#pragma unroll
    for (u32 round = 0; round < ROUNDS; round++) {
        u32 at = before[round * WARPS + warp] + __popc(votes[round] & ((1u << lane) - 1));
        if (votes[round] >> lane & 1) found[at] = first + round * THREADS + threadIdx.x;
    }
    u32 all = before[32];
    __syncthreads();
    return all;
}

// Row blockIdx.x of the table, 32 N columns of it: 32 threads a place, eight places at a time.
template <u32 N, typename T>
__device__ inline void sum_places(const T* gradient, const i32* ids, f32* out, u32 count, u32 channels, u32 adds) {
    __shared__ u32 found[LOOKED];
    __shared__ f32 shared[WARPS][N * 32];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x, first_channel = blockIdx.y * 32 * N;
    if (first_channel >= channels) return;
    u32 channel = first_channel + lane * N;
    f32 sum[N] = {};
    for (u32 first = 0; first < count; first += LOOKED) {
        u32 all = find(ids, first, count, row, found);
        if (channel < channels) {
#pragma unroll 4
            for (u32 i = warp; i < all; i += WARPS) {
                f32 g[N];
                take(gradient + (u64)found[i] * channels + channel, g);
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
        for (u32 part = 0; part < WARPS; part++) total += shared[part][i];
        f32* place = out + (u64)row * channels + to;
        *place = adds ? *place + total : total;
    }
}

// Rows that divide into 16 bytes are moved so.
template <typename T>
__device__ inline void pick_rows(const T* table, const i32* ids, T* out, u32 rows, u32 channels, u32 count) {
    if (channels % WIDTH<T> == 0) {
        pick<WIDTH<T>>(table, ids, out, rows, channels, count);
    } else {
        pick<1>(table, ids, out, rows, channels, count);
    }
}

template <typename T>
__device__ inline void sum_gradient(const T* gradient, const i32* ids, f32* out, u32 count, u32 channels, u32 adds) {
    if (channels % WIDTH<T> == 0) {
        sum_places<WIDTH<T>>(gradient, ids, out, count, channels, adds);
    } else {
        sum_places<1>(gradient, ids, out, count, channels, adds);
    }
}

#define KERNELS(T)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
        embedding_##T(const T* table, const i32* ids, T* out, u32 rows, u32 channels, u32 count) {                    \
        pick_rows(table, ids, out, rows, channels, count);                                                            \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                             \
        embedding_gradient_##T(const T* gradient, const i32* ids, f32* out, u32 count, u32 channels, u32 rows,        \
                               u32 adds) {                                                                            \
        sum_gradient(gradient, ids, out, count, channels, adds);                                                      \
    }

KERNELS(f32)
KERNELS(bf16)
