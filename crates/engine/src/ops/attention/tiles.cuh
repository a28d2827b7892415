// Shared-memory tiles of flash attention (Dao 2023, FlashAttention-2): the columns of one head for some frames, stored as
// operands of tensor-core GEMMs.
//
// A frame has HEAD_DIM columns of bf16, in CHUNKS chunks of 16 bytes. An XOR swizzle permutes the chunks of a frame by its
// index, so that the same chunk of eight consecutive frames covers all 32 banks and ldmatrix has no bank conflicts.

constexpr u32 THREADS = 128;
constexpr u32 CHUNKS = HEAD_DIM / 8;
// Chunks that the swizzle permutes among each other.
constexpr u32 SWIZZLE_CHUNKS = HEAD_DIM % 64 == 0 ? 8 : 4;
constexpr u32 FRAME_BYTES = HEAD_DIM * 2;
constexpr f32 LOG2_E = 1.44269504f;

// What the chunk index of a frame is XORed with. It repeats after eight frames.
__device__ inline u32 swizzle(u32 frame) { return SWIZZLE_CHUNKS == 8 ? frame % 8 : frame / 2 % 4; }

// The byte offset of a chunk in a tile.
__device__ inline u32 chunk_offset(u32 frame, u32 chunk) { return frame * FRAME_BYTES + (chunk ^ swizzle(frame)) * 16; }

// The byte offset of this lane's ldmatrix row, for four matrices of 16 frames x 16 columns. Fragments of A, and of a
// transposed B, take the matrices column by column; fragments of B take them row by row.
__device__ inline u32 lane_offset_a() { return chunk_offset(threadIdx.x % 16, threadIdx.x % 32 / 16); }
__device__ inline u32 lane_offset_b() {
    return chunk_offset(threadIdx.x % 8 + threadIdx.x % 32 / 16 * 8, threadIdx.x / 8 % 2);
}

// The address `at` moved 16 · `step` columns further. Tiles are aligned to 128 bytes, so XOR on the address is XOR on the
// chunk index.
__device__ inline u32 advance_columns(u32 at, u32 step) {
    return (at ^ 2 * step % SWIZZLE_CHUNKS * 16) + 2 * step / SWIZZLE_CHUNKS * SWIZZLE_CHUNKS * 16;
}

// One head of one row in global memory. `end` is the number of valid frames.
struct HeadMatrix {
    const bf16* at;
    u64 stride;
    u32 end;
};

// Starts the copy of COUNT frames from `first` on to the tile at `to`. Frames past the end become zeros.
template <u32 COUNT> __device__ inline void load_tile_async(u32 to, HeadMatrix x, u32 first) {
    constexpr u32 FRAMES_PER_PASS = THREADS / SWIZZLE_CHUNKS;
#pragma unroll
    for (u32 i = 0; i < COUNT / FRAMES_PER_PASS; i++) {
        u32 frame = i * FRAMES_PER_PASS + threadIdx.x / SWIZZLE_CHUNKS, chunk = threadIdx.x % SWIZZLE_CHUNKS;
        bool in_bounds = first + frame < x.end;
        const bf16* from = x.at + (in_bounds ? (first + frame) * x.stride : 0) + chunk * 8;
#pragma unroll
        for (u32 j = 0; j < CHUNKS; j += SWIZZLE_CHUNKS)
            cp_async_16(to + chunk_offset(frame, chunk) + j * 16, from + j * 8, in_bounds);
    }
}

// c += A·Bᵀ over the 16 columns of `step`: 16·M frames in the fragments `a`, 8·N frames in the tile `b_tile`.
template <u32 M, u32 N>
__device__ inline void gemm_nt_step(f32 (&c)[M][N][4], const u32 (&a)[M][4], u32 b_tile, u32 step) {
#pragma unroll
    for (u32 j = 0; j < N / 2; j++) {
        u32 b[4];
        ldmatrix_x4(b, advance_columns(b_tile + lane_offset_b(), step) + j * 16 * FRAME_BYTES);
#pragma unroll
        for (u32 i = 0; i < M; i++) {
            mma_m16n8k16(c[i][2 * j], a[i], b[0], b[1]);
            mma_m16n8k16(c[i][2 * j + 1], a[i], b[2], b[3]);
        }
    }
}

// c += A·Bᵀ over all columns, both from tiles in shared memory.
template <u32 M, u32 N> __device__ inline void gemm_nt(f32 (&c)[M][N][4], u32 a_tile, u32 b_tile) {
#pragma unroll
    for (u32 step = 0; step < HEAD_DIM / 16; step++) {
        u32 a[M][4];
#pragma unroll
        for (u32 i = 0; i < M; i++)
            ldmatrix_x4(a[i], advance_columns(a_tile + lane_offset_a(), step) + i * 16 * FRAME_BYTES);
        gemm_nt_step(c, a, b_tile, step);
    }
}

// c += P·B with P [16·M, 8·N] in registers, as the accumulators of gemm_nt leave it, rounded to bf16; B is 8·N frames of
// the tile `b_tile`.
template <u32 M, u32 N>
__device__ inline void gemm_rs(f32 (&c)[M][HEAD_DIM / 8][4], const f32 (&p)[M][N][4], u32 b_tile) {
#pragma unroll
    for (u32 step = 0; step < N / 2; step++) {
        u32 a[M][4];
#pragma unroll
        for (u32 i = 0; i < M; i++) {
            const f32(&first)[4] = p[i][2 * step], (&second)[4] = p[i][2 * step + 1];
            a[i][0] = bf16_pair(first[0], first[1]);
            a[i][1] = bf16_pair(first[2], first[3]);
            a[i][2] = bf16_pair(second[0], second[1]);
            a[i][3] = bf16_pair(second[2], second[3]);
        }
#pragma unroll
        for (u32 j = 0; j < HEAD_DIM / 16; j++) {
            u32 b[4];
            ldmatrix_x4_trans(b, advance_columns(b_tile + lane_offset_a(), j) + step * 16 * FRAME_BYTES);
#pragma unroll
            for (u32 i = 0; i < M; i++) {
                mma_m16n8k16(c[i][2 * j], a[i], b[0], b[1]);
                mma_m16n8k16(c[i][2 * j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

template <u32 M, u32 N> __device__ inline void clear(f32 (&c)[M][N][4]) {
#pragma unroll
    for (u32 i = 0; i < M * N * 4; i++) c[i / 4 / N][i / 4 % N][i % 4] = 0.0f;
}

// Sets masked scores to -infinity: keys past the end, and with `causal` keys after the query. Rows of `scores` are queries
// from `query` on, columns keys from `key` on; with `transposed`, rows are keys and columns queries.
template <u32 M, u32 N>
__device__ inline void apply_mask(f32 (&scores)[M][N][4], u32 query, u32 key, u32 end, bool causal, bool transposed) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 i = 0; i < M * N * 4; i++) {
        u32 row = i / 4 / N * 16 + i % 4 / 2 * 8 + lane / 4, column = i / 4 % N * 8 + lane % 4 * 2 + i % 2;
        u32 q = query + (transposed ? column : row), k = key + (transposed ? row : column);
        if (k >= end || (causal && k > q)) scores[i / 4 / N][i / 4 % N][i % 4] = -__uint_as_float(0x7f800000u);
    }
}

// Stores the 16·M frames of a warp, times `scale[i][half]`. They pass through the warp's own frames of a tile, so that
// global stores are 16 bytes wide and coalesced. Frames from `valid` on are stored as zeros; frames from `count` on are
// not stored.
template <u32 M>
__device__ inline void store_frames(u8* tile, const f32 (&x)[M][HEAD_DIM / 8][4], const f32 (&scale)[M][2], bf16* to,
                                    u64 stride, u32 valid, u32 count) {
    u32 lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < M * 2; i++) {
        u32 frame = i * 8 + lane / 4;
        f32 s = scale[i / 2][i % 2];
#pragma unroll
        for (u32 j = 0; j < HEAD_DIM / 8; j++) {
            const f32(&four)[4] = x[i / 2][j];
            u32 pair = bf16_pair(four[i % 2 * 2] * s, four[i % 2 * 2 + 1] * s);
            *(u32*)(tile + chunk_offset(frame, j) + lane % 4 * 4) = frame < valid ? pair : 0;
        }
    }
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < M * 16; i += 32 / SWIZZLE_CHUNKS) {
        u32 frame = i + lane / SWIZZLE_CHUNKS, chunk = lane % SWIZZLE_CHUNKS;
#pragma unroll
        for (u32 j = 0; j < CHUNKS; j += SWIZZLE_CHUNKS) {
            uint4 bytes = *(const uint4*)(tile + chunk_offset(frame, chunk) + j * 16);
            if (frame < count) *(uint4*)(to + frame * stride + (chunk + j) * 8) = bytes;
        }
    }
}

// Row `row` of a ragged batch: its first frame, its number of frames, and how many are valid. Lengths outside the row are
// clamped to it.
struct Row {
    u32 start, frames, valid;

    __device__ Row(const u32* starts, const i32* lengths, u32 row) {
        start = __ldg(starts + row);
        frames = __ldg(starts + row + 1) - start;
        valid = min_of((u32)max_of(__ldg(lengths + row), 0), frames);
    }
};

// The number of frames from `first` on that lie before `end`.
__device__ inline u32 frames_before(u32 end, u32 first) { return first < end ? end - first : 0; }
