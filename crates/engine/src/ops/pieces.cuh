// Sums over pieces that blocks before have left. Every sum has one order: that of the threads, then a fixed tree.
//
// What counts is how many reads are under way at once. Left alone, the compiler has one or two for a thread that adds
// up, however far its loop is unrolled: a read waits for the registers of one before, and sums are made in between. So
// reads go to an array, and an empty statement says that all of it is needed before the first sum.

constexpr u32 AT_ONCE = 8;

// The sum of part[piece * stride] over every `lanes`th piece from `first` on.
__device__ inline f32 sum_of_pieces(const f32* __restrict__ part, u64 stride, u32 first, u32 pieces, u32 lanes) {
    f32 sum = 0.f;
    for (; first < pieces; first += AT_ONCE * lanes) {
        f32 here[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            const u32 piece = first + i * lanes;
            here[i] = piece < pieces ? part[piece * stride] : 0.f;
        }
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) asm volatile("" : "+f"(here[i]));
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) sum += here[i];
    }
    return sum;
}

// Threads of a block that sums pieces, 32 columns wide: every sixteenth piece is added up first, then those sums are.
constexpr u32 PIECE_LANES = 16, PIECE_THREADS = 32 * PIECE_LANES;

// The sum over `pieces` of part[piece * stride + column], in the threads of the first warp, a column each.
__device__ inline f32 sum_pieces(const f32* part, u32 pieces, u64 stride, bool there) {
    __shared__ f32 sums[PIECE_LANES][32];
    u32 lane = threadIdx.x / 32, column = threadIdx.x % 32;
    sums[lane][column] = there ? sum_of_pieces(part + column, stride, lane, pieces, PIECE_LANES) : 0.f;
    __syncthreads();
    f32 sum = 0.f;
    if (lane == 0) {
        for (u32 i = 0; i < PIECE_LANES; i++) sum += sums[i][column];
    }
    return sum;
}
