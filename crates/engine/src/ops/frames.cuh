// Helpers of the ops: scalar and vectorised access, ragged rows of frames, reductions over a block.

// Elements in 16 bytes.
template <typename T> constexpr u32 VECTOR = 16 / sizeof(T);

// Access to N adjacent elements: one, or 16 bytes, which must be aligned.
template <u32 N, typename T> __device__ inline void load_elements(const T* from, f32 (&x)[N]) {
    if constexpr (N == 1) {
        x[0] = (f32)*from;
    } else {
        load_vec(from, x);
    }
}
template <u32 N, typename T> __device__ inline void store_elements(T* to, const f32 (&x)[N]) {
    if constexpr (N == 1) {
        *to = T(x[0]);
    } else {
        store_vec(to, x);
    }
}
template <u32 N, typename T> __device__ inline void copy_elements(const T* from, T* to) {
    if constexpr (N == 1) {
        *to = *from;
    } else {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    }
}
template <u32 N, typename T> __device__ inline void zero_elements(T* to) {
    if constexpr (N == 1) {
        *to = T(0.f);
    } else {
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    }
}

// Division of numbers that mostly fit 32 bits: in 64 bits it takes several times as long.
__device__ inline u64 divide(u64 a, u32 b) { return a >> 32 ? a / b : (u32)a / b; }

// A row of a row table: its first frame, and its number of frames.
struct Row {
    u32 start, frames;

    __device__ Row(const u32* starts, u32 row) : start(starts[row]), frames(starts[row + 1] - starts[row]) {}
};

// The number of valid frames of a row. Lengths come with the data, so they are clamped.
__device__ inline u32 clamp_length(i32 length, u32 frames) { return length < 0 ? 0 : min_of((u32)length, frames); }

// The row that `at` is in, by binary search. An empty row is never found.
__device__ inline u32 row_of(const u32* starts, u32 rows, u32 at) {
    u32 low = 0, high = rows;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (starts[middle] <= at) low = middle; else high = middle;
    }
    return low;
}

// Calls work(frame, element) for elements 0, N, 2 N, ... of `width` in each of `frames` frames, distributed over all
// blocks of a row. The host ensures that a row has fewer than 2^31 elements.
template <u32 N, typename F> __device__ inline void each_element(u32 frames, u32 width, F work) {
    u32 vectors = width / N, count = frames * vectors;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        u32 frame = i / vectors;
        work(frame, (i - frame * vectors) * N);
    }
}

// The sum over a block of full warps, in every thread. Its order is fixed.
__device__ inline f32 block_sum_all(f32 x) {
    __shared__ f32 sums[32];
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    f32 total = 0.f;
    for (u32 warp = 0; warp < blockDim.x / 32; warp++) total += sums[warp];
    return total;
}
