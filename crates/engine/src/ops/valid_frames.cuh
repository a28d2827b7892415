// Ragged rows of frames in one tensor: `starts` holds the first frame of each row, and the end of the last one. The
// first `length` frames of a row are valid, the others are padding; a length is clamped to the row.

// The row that a frame is in, by binary search. An empty row is never found.
__device__ inline u32 row_at(const u32* starts, u32 rows, u32 frame) {
    u32 low = 0, high = rows;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (__ldg(starts + middle) <= frame) low = middle;
        else high = middle;
    }
    return low;
}

// Whether frames are valid. Frames must be asked for in ascending order.
struct valid_frames {
    const u32* starts;
    const i32* lengths;
    u32 row, end, valid_end;

    __device__ inline valid_frames(const u32* starts, const i32* lengths, u32 rows, u32 frame)
        : starts(starts), lengths(lengths) {
        enter(row_at(starts, rows, frame));
    }

    __device__ inline void enter(u32 next) {
        row = next;
        const u32 start = __ldg(starts + row);
        end = __ldg(starts + row + 1);
        valid_end = start + min_of((u32)max_of(__ldg(lengths + row), 0), end - start);
    }

    __device__ inline bool has(u32 frame) {
        while (frame >= end) enter(row + 1);
        return frame < valid_end;
    }
};

// Frames per chunk, which has one partial sum: about CHUNK elements.
constexpr u32 CHUNK = 16 * 1024;
__device__ inline u32 frames_per_chunk(u32 columns) { return max_of(CHUNK / columns, 1u); }
