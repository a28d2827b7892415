// What the kernels of ops share: elements one by one or 16 bytes at a time, rows of frames, sums over a block.

// Elements in 16 bytes.
template <typename T> constexpr u32 WIDTH = 16 / sizeof(T);

// N neighbouring elements: one, or 16 bytes of them. Those are aligned, then.
template <u32 N, typename T> __device__ inline void take(const T* from, f32 (&x)[N]) {
    if constexpr (N == 1) {
        x[0] = (f32)*from;
    } else {
        load_vec(from, x);
    }
}
template <u32 N, typename T> __device__ inline void give(T* to, const f32 (&x)[N]) {
    if constexpr (N == 1) {
        *to = T(x[0]);
    } else {
        store_vec(to, x);
    }
}
template <u32 N, typename T> __device__ inline void copy(const T* from, T* to) {
    if constexpr (N == 1) {
        *to = *from;
    } else {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    }
}
template <u32 N, typename T> __device__ inline void clear(T* to) {
    if constexpr (N == 1) {
        *to = T(0.f);
    } else {
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    }
}

// Division of what mostly fits 32 bits: with 64 it takes several times as long.
__device__ inline u64 divide(u64 a, u32 b) { return a >> 32 ? a / b : (u32)a / b; }

// Row blockIdx.y of a table of rows: where it begins, and its frames.
struct Row {
    u32 start, frames;

    __device__ Row(const u32* starts, u32 row) : start(starts[row]), frames(starts[row + 1] - starts[row]) {}
};

// How much of a row is filled, whatever the batch says.
__device__ inline u32 filled(i32 length, u32 frames) { return length < 0 ? 0 : min_of((u32)length, frames); }

// The row that `at` lies in. Empty rows are passed over.
__device__ inline u32 row_of(const u32* starts, u32 rows, u32 at) {
    u32 low = 0, high = rows;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (starts[middle] <= at) low = middle; else high = middle;
    }
    return low;
}

// Calls work(frame, element) for elements 0, N, 2 N, ... of `width` in each of `frames` frames, spread over all blocks
// of a row. A row has less than 2^31 elements: the host sees to it.
template <u32 N, typename F> __device__ inline void each_element(u32 frames, u32 width, F work) {
    u32 of_a_frame = width / N, count = frames * of_a_frame;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        u32 frame = i / of_a_frame;
        work(frame, (i - frame * of_a_frame) * N);
    }
}

// The sum over a block of whole warps, in every thread. It has one order.
__device__ inline f32 block_total(f32 x) {
    __shared__ f32 sums[32];
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    f32 total = 0.f;
    for (u32 warp = 0; warp < blockDim.x / 32; warp++) total += sums[warp];
    return total;
}
