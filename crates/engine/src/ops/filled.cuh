// Rows of frames, one behind the other: `starts` has where each begins, and behind the last one the end of all. Of a row the
// first `length` frames are filled; a length below 0 or past the row counts as its end there.

// The row a frame lies in. A row without frames is never found.
__device__ inline u32 row_at(const u32* starts, u32 rows, u32 frame) {
    u32 low = 0, high = rows;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (__ldg(starts + middle) <= frame) low = middle;
        else high = middle;
    }
    return low;
}

// Whether frames are filled, asked in rising order.
struct filled_frames {
    const u32* starts;
    const i32* lengths;
    u32 row, end, filled_end;

    __device__ inline filled_frames(const u32* starts, const i32* lengths, u32 rows, u32 frame)
        : starts(starts), lengths(lengths) {
        enter(row_at(starts, rows, frame));
    }

    __device__ inline void enter(u32 next) {
        row = next;
        const u32 start = __ldg(starts + row);
        end = __ldg(starts + row + 1);
        filled_end = start + min_of((u32)max_of(__ldg(lengths + row), 0), end - start);
    }

    __device__ inline bool has(u32 frame) {
        while (frame >= end) enter(row + 1);
        return frame < filled_end;
    }
};

// Frames of the pieces whose sums are taken one by one: about PIECE numbers.
constexpr u32 PIECE = 16 * 1024;
__device__ inline u32 frames_of_a_piece(u32 columns) { return max_of(PIECE / columns, 1u); }
