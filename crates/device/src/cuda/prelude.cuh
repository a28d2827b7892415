// Prepended to every kernel source: short type names, bf16, vectorised loads and stores, and reductions. No CUDA headers.

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;
typedef float f32;

static_assert(sizeof(u64) == 8 && sizeof(i32) == 4 && sizeof(i16) == 2, "types have the sizes in their names");

// The upper half of a float. Arithmetic is in f32; stores round to nearest, ties to even.
struct bf16 {
    u16 bits;

    bf16() = default;

    __device__ explicit bf16(f32 x) {
        u32 f32_bits = __float_as_uint(x);
        if ((f32_bits & 0x7fffffffu) > 0x7f800000u) {
            bits = (u16)((f32_bits >> 16) | 0x0040u);  // A NaN becomes a quiet NaN with its sign.
        } else {
            bits = (u16)((f32_bits + 0x7fffu + ((f32_bits >> 16) & 1u)) >> 16);
        }
    }

    __device__ operator f32() const { return __uint_as_float((u32)bits << 16); }
};

static_assert(sizeof(bf16) == 2, "bf16 is stored in two bytes");

template <typename T> __device__ inline T min_of(T a, T b) { return b < a ? b : a; }
template <typename T> __device__ inline T max_of(T a, T b) { return a < b ? b : a; }
template <typename T> __device__ inline T clamp_to(T x, T low, T high) { return min_of(max_of(x, low), high); }

// The index of this thread in a one-dimensional grid, and the number of threads of the grid.
__device__ inline u64 thread_index() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline u64 thread_count() { return (u64)gridDim.x * blockDim.x; }

// Whether 16-byte loads and stores are possible.
__device__ inline bool is_aligned(const void* at) { return ((u64)at & 15) == 0; }

// Two floats as bf16, the first in the lower half.
__device__ inline u32 bf16_pair(f32 first, f32 second) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

// Vectorised access: N adjacent elements as floats, 16 bytes at a time (8 for four bf16). `from` and `to` are aligned to
// that.
template <u32 N> __device__ inline void load_vec(const f32* from, f32 (&x)[N]) {
    static_assert(N % 4 == 0, "a multiple of 16 bytes");
#pragma unroll
    for (u32 i = 0; i < N; i += 4) {
        float4 four = *reinterpret_cast<const float4*>(from + i);
        x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
}
template <u32 N> __device__ inline void load_vec(const bf16* from, f32 (&x)[N]) {
    static_assert(N == 4 || N % 8 == 0, "8 bytes, or a multiple of 16 bytes");
    u32 pairs[N / 2];
    if constexpr (N == 4) {
        uint2 two = *reinterpret_cast<const uint2*>(from);
        pairs[0] = two.x, pairs[1] = two.y;
    } else {
#pragma unroll
        for (u32 i = 0; i < N / 2; i += 4) {
            uint4 four = *reinterpret_cast<const uint4*>(from + 2 * i);
            pairs[i] = four.x, pairs[i + 1] = four.y, pairs[i + 2] = four.z, pairs[i + 3] = four.w;
        }
    }
#pragma unroll
    for (u32 i = 0; i < N / 2; i++) {
        x[2 * i] = __uint_as_float(pairs[i] << 16);
        x[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
    }
}
template <u32 N> __device__ inline void store_vec(f32* to, const f32 (&x)[N]) {
    static_assert(N % 4 == 0, "a multiple of 16 bytes");
#pragma unroll
    for (u32 i = 0; i < N; i += 4) {
        *reinterpret_cast<float4*>(to + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    }
}
template <u32 N> __device__ inline void store_vec(bf16* to, const f32 (&x)[N]) {
    static_assert(N == 4 || N % 8 == 0, "8 bytes, or a multiple of 16 bytes");
    u32 pairs[N / 2];
#pragma unroll
    for (u32 i = 0; i < N / 2; i++) pairs[i] = bf16_pair(x[2 * i], x[2 * i + 1]);
    if constexpr (N == 4) {
        *reinterpret_cast<uint2*>(to) = make_uint2(pairs[0], pairs[1]);
    } else {
#pragma unroll
        for (u32 i = 0; i < N / 2; i += 4) {
            *reinterpret_cast<uint4*>(to + 2 * i) = make_uint4(pairs[i], pairs[i + 1], pairs[i + 2], pairs[i + 3]);
        }
    }
}

// Butterfly reductions over groups of LANES adjacent lanes: the sum and the maximum, in all of them. Every lane of the warp
// must take part.
template <u32 LANES = 32, typename T> __device__ inline T warp_sum(T x) {
#pragma unroll
    for (u32 lane_mask = LANES / 2; lane_mask > 0; lane_mask /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane_mask);
    return x;
}
template <u32 LANES = 32> __device__ inline f32 warp_max(f32 x) {
#pragma unroll
    for (u32 lane_mask = LANES / 2; lane_mask > 0; lane_mask /= 2)
        x = max_of(x, __shfl_xor_sync(0xffffffffu, x, lane_mask));
    return x;
}

// The sum over a thread block of full warps, in the first warp. Its order is fixed, so results are deterministic.
template <typename T> __device__ inline T block_sum(T x) {
    __shared__ T sums[32];
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x < blockDim.x / 32 ? sums[threadIdx.x] : T(0);
    __syncthreads();
    return threadIdx.x < 32 ? warp_sum(x) : x;
}
