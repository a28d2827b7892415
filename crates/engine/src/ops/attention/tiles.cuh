// Tiles: a head's columns of some frames, in shared memory, as operands of GEMMs.
//
// SIZE columns of bf16 are CHUNKS pieces of 16 bytes. Their order in a frame is changed with the frame, so that the same
// piece of eight frames lies in all 32 banks: a load of matrices takes one pass.

constexpr u32 THREADS = 128;
constexpr u32 CHUNKS = SIZE / 8;
// Pieces among which a displacement moves one.
constexpr u32 GROUP = SIZE % 64 == 0 ? 8 : 4;
constexpr u32 FRAME_BYTES = SIZE * 2;
constexpr f32 LOG2_E = 1.44269504f;

// How pieces of this frame are displaced. It repeats after eight frames.
__device__ inline u32 turn_of(u32 frame) { return GROUP == 8 ? frame % 8 : frame / 2 % 4; }

// Where a piece of a frame lies in a tile, in bytes.
__device__ inline u32 spot(u32 frame, u32 chunk) { return frame * FRAME_BYTES + (chunk ^ turn_of(frame)) * 16; }

// Where this lane's row of four matrices begins in a tile, for 16 frames x 16 columns: matrices below each other first (`a` of
// products, turned `b` of mixtures), or beside each other first (`b` of products).
__device__ inline u32 lane_down() { return spot(threadIdx.x % 16, threadIdx.x % 32 / 16); }
__device__ inline u32 lane_across() { return spot(threadIdx.x % 8 + threadIdx.x % 32 / 16 * 8, threadIdx.x / 8 % 2); }

// The same 16 · `step` columns further, `at` being an address: tiles begin at multiples of 128 bytes, so that a displacement
// of the address is one of the piece.
__device__ inline u32 further(u32 at, u32 step) {
    return (at ^ 2 * step % GROUP * 16) + 2 * step / GROUP * GROUP * 16;
}

// A head's columns of one row. `end` is its number of valid frames.
struct Frames {
    const bf16* at;
    u64 stride;
    u32 end;
};

// Begins to copy COUNT frames from `first` on to the tile at `to`. Frames past the end become zeros, whatever lies there.
template <u32 COUNT> __device__ inline void begin_tile(u32 to, Frames x, u32 first) {
    constexpr u32 AT_ONCE = THREADS / GROUP;
#pragma unroll
    for (u32 i = 0; i < COUNT / AT_ONCE; i++) {
        u32 frame = i * AT_ONCE + threadIdx.x / GROUP, chunk = threadIdx.x % GROUP;
        bool there = first + frame < x.end;
        const bf16* from = x.at + (there ? (first + frame) * x.stride : 0) + chunk * 8;
#pragma unroll
        for (u32 j = 0; j < CHUNKS; j += GROUP) copy_16(to + spot(frame, chunk) + j * 16, from + j * 8, there);
    }
}

// c += the products of 16·M frames in `a` with 8·N frames of `right`, over the 16 columns of `step`.
template <u32 M, u32 N>
__device__ inline void multiply_step(f32 (&c)[M][N][4], const u32 (&a)[M][4], u32 right, u32 step) {
#pragma unroll
    for (u32 j = 0; j < N / 2; j++) {
        u32 b[4];
        load_matrices(b, further(right + lane_across(), step) + j * 16 * FRAME_BYTES);
#pragma unroll
        for (u32 i = 0; i < M; i++) {
            multiply_add(c[i][2 * j], a[i], b[0], b[1]);
            multiply_add(c[i][2 * j + 1], a[i], b[2], b[3]);
        }
    }
}

// The same over all columns, with the first frames in the tile at `left`.
template <u32 M, u32 N> __device__ inline void multiply_frames(f32 (&c)[M][N][4], u32 left, u32 right) {
#pragma unroll
    for (u32 step = 0; step < SIZE / 16; step++) {
        u32 a[M][4];
#pragma unroll
        for (u32 i = 0; i < M; i++)
            load_matrices(a[i], further(left + lane_down(), step) + i * 16 * FRAME_BYTES);
        multiply_step(c, a, right, step);
    }
}

// c += 16·M mixtures of 8·N frames of `right`, with `weights` as products leave them, rounded to bf16.
template <u32 M, u32 N>
__device__ inline void mix_frames(f32 (&c)[M][SIZE / 8][4], const f32 (&weights)[M][N][4], u32 right) {
#pragma unroll
    for (u32 step = 0; step < N / 2; step++) {
        u32 a[M][4];
#pragma unroll
        for (u32 i = 0; i < M; i++) {
            const f32(&first)[4] = weights[i][2 * step], (&second)[4] = weights[i][2 * step + 1];
            a[i][0] = pack(first[0], first[1]);
            a[i][1] = pack(first[2], first[3]);
            a[i][2] = pack(second[0], second[1]);
            a[i][3] = pack(second[2], second[3]);
        }
#pragma unroll
        for (u32 j = 0; j < SIZE / 16; j++) {
            u32 b[4];
            load_turned(b, further(right + lane_down(), j) + step * 16 * FRAME_BYTES);
#pragma unroll
            for (u32 i = 0; i < M; i++) {
                multiply_add(c[i][2 * j], a[i], b[0], b[1]);
                multiply_add(c[i][2 * j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

template <u32 M, u32 N> __device__ inline void clear(f32 (&c)[M][N][4]) {
#pragma unroll
    for (u32 i = 0; i < M * N * 4; i++) c[i / 4 / N][i / 4 % N][i % 4] = 0.0f;
}

// Scores of keys that a query does not see become -infinity: those past the end, and later ones where `causal`. Rows are
// queries from `query` on, columns keys from `key` on; `turned` the other way round.
template <u32 M, u32 N>
__device__ inline void hide(f32 (&scores)[M][N][4], u32 query, u32 key, u32 end, bool causal, bool turned) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 i = 0; i < M * N * 4; i++) {
        u32 down = i / 4 / N * 16 + i % 4 / 2 * 8 + lane / 4, across = i / 4 % N * 8 + lane % 4 * 2 + i % 2;
        u32 q = query + (turned ? across : down), k = key + (turned ? down : across);
        if (k >= end || (causal && k > q)) scores[i / 4 / N][i / 4 % N][i % 4] = -__uint_as_float(0x7f800000u);
    }
}

// Writes 16·M frames of a warp, times `scale[i][half]`, through its own frames of a tile, so that whole lines are stored.
// Frames from `valid` on are zeros whatever `x` holds; those from `count` on are not written.
template <u32 M>
__device__ inline void store_frames(u8* tile, const f32 (&x)[M][SIZE / 8][4], const f32 (&scale)[M][2], bf16* to,
                                    u64 stride, u32 valid, u32 count) {
    u32 lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < M * 2; i++) {
        u32 frame = i * 8 + lane / 4;
        f32 s = scale[i / 2][i % 2];
#pragma unroll
        for (u32 j = 0; j < SIZE / 8; j++) {
            const f32(&four)[4] = x[i / 2][j];
            u32 both = pack(four[i % 2 * 2] * s, four[i % 2 * 2 + 1] * s);
            *(u32*)(tile + spot(frame, j) + lane % 4 * 4) = frame < valid ? both : 0;
        }
    }
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < M * 16; i += 32 / GROUP) {
        u32 frame = i + lane / GROUP, chunk = lane % GROUP;
#pragma unroll
        for (u32 j = 0; j < CHUNKS; j += GROUP) {
            uint4 piece = *(const uint4*)(tile + spot(frame, chunk) + j * 16);
            if (frame < count) *(uint4*)(to + frame * stride + (chunk + j) * 8) = piece;
        }
    }
}

// Frames of row `row`: where they begin, how many there are, and how many are filled, whatever the batch says.
struct Row {
    u32 start, frames, valid;

    __device__ Row(const u32* starts, const i32* lengths, u32 row) {
        start = __ldg(starts + row);
        frames = __ldg(starts + row + 1) - start;
        valid = min_of((u32)max_of(__ldg(lengths + row), 0), frames);
    }
};

// How many of the frames from `first` on lie before `end`.
__device__ inline u32 left_of(u32 end, u32 first) { return first < end ? end - first : 0; }
