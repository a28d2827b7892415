// Rows of different lengths, one behind the other: `starts` has where each begins, and behind the last one its end.

// The row that `at` lies in, by all lanes of a warp: they look at 32 rows at once, so that it takes one load of one
// line and a vote, where a search by halves is five loads one after the other. A row of nothing is never found.
__device__ inline u32 row_of(const u32* starts, u32 rows, u32 at) {
    u32 lane = threadIdx.x % 32, begun = 0;
    for (u32 first = 0; first < rows; first += 32) {
        bool here = first + lane < rows && __ldg(starts + first + lane) <= at;
        u32 count = (u32)__popc(__ballot_sync(0xffffffffu, here));
        begun += count;
        if (count < 32) break;
    }
    return begun - 1;
}

// How much a row has room for.
__device__ inline u32 room_of(const u32* starts, u32 row) { return __ldg(starts + row + 1) - __ldg(starts + row); }

