// Rows become columns, through squares in shared memory: both sides are read and written in runs of 32.

constexpr u32 SQUARE = 32, LINES = 8;

template <typename T> __device__ inline void transpose(const T* x, T* out, u32 m, u32 n) {
    // One column more, so that a column of the square lies in different banks.
    __shared__ T square[SQUARE][SQUARE + 1];
    u64 at = (u64)blockIdx.z * m * n;
    u32 row = blockIdx.y * SQUARE, column = blockIdx.x * SQUARE, i = threadIdx.x % SQUARE, line = threadIdx.x / SQUARE;
    for (u32 j = line; j < SQUARE; j += LINES)
        if (row + j < m && column + i < n) square[j][i] = x[at + (u64)(row + j) * n + column + i];
    __syncthreads();
    for (u32 j = line; j < SQUARE; j += LINES)
        if (column + j < n && row + i < m) out[at + (u64)(column + j) * m + row + i] = square[i][j];
}

#define KERNELS(T)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(SQUARE* LINES)                                                       \
        transpose_##T(const T* x, T* out, u32, u32 m, u32 n) {                                                        \
        transpose<T>(x, out, m, n);                                                                                   \
    }

KERNELS(f32)
KERNELS(bf16)
