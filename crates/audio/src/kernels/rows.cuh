// Rows of different lengths in one tensor: `starts` holds the first index of each row, and the end of the last one.

// The row that index `at` is in. A whole warp calls it: the lanes compare with 32 rows at once, which takes one load of
// one cache line and a ballot, where a binary search takes five dependent loads. An empty row is never found.
__device__ inline u32 row_of(const u32* starts, u32 rows, u32 at) {
    u32 lane = threadIdx.x % 32, started = 0;
    for (u32 first = 0; first < rows; first += 32) {
        bool here = first + lane < rows && __ldg(starts + first + lane) <= at;
        u32 count = (u32)__popc(__ballot_sync(0xffffffffu, here));
        started += count;
        if (count < 32) break;
    }
    return started - 1;
}

// Elements that a row has room for.
__device__ inline u32 row_capacity(const u32* starts, u32 row) { return __ldg(starts + row + 1) - __ldg(starts + row); }
