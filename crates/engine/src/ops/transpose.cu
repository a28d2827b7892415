// Matrix transpose through tiles in shared memory, so that loads and stores are both coalesced in runs of 32.

constexpr u32 TILE = 32, ROWS_PER_PASS = 8;

template <typename T> __device__ inline void transpose(const T* x, T* out, u32 m, u32 n) {
    // One column of padding, so that a column of the tile has no bank conflicts.
    __shared__ T tile[TILE][TILE + 1];
    u64 at = (u64)blockIdx.z * m * n;
    u32 row = blockIdx.y * TILE, column = blockIdx.x * TILE, i = threadIdx.x % TILE, first = threadIdx.x / TILE;
    for (u32 j = first; j < TILE; j += ROWS_PER_PASS)
        if (row + j < m && column + i < n) tile[j][i] = x[at + (u64)(row + j) * n + column + i];
    __syncthreads();
    for (u32 j = first; j < TILE; j += ROWS_PER_PASS)
        if (column + j < n && row + i < m) out[at + (u64)(column + j) * m + row + i] = tile[i][j];
}

#define KERNELS(T)                                                     \
    extern "C" __global__ void __launch_bounds__(TILE * ROWS_PER_PASS) \
        transpose_##T(const T* x, T* out, u32 batch, u32 m, u32 n) {   \
        transpose<T>(x, out, m, n);                                    \
    }

KERNELS(f32)
KERNELS(bf16)
