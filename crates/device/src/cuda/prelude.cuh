// What every kernel file starts from: short names for the types, bf16, and a few helpers. No CUDA headers.

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;
typedef float f32;

static_assert(sizeof(u64) == 8 && sizeof(i32) == 4 && sizeof(i16) == 2, "types are as wide as their names");

// The upper half of a float. Arithmetic is done in f32; stores round to nearest, ties to even.
struct bf16 {
    u16 bits;

    bf16() = default;

    __device__ explicit bf16(f32 x) {
        u32 wide = __float_as_uint(x);
        if ((wide & 0x7fffffffu) > 0x7f800000u) {
            bits = (u16)((wide >> 16) | 0x0040u);  // A NaN stays one, quiet, with its sign.
        } else {
            bits = (u16)((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
        }
    }

    __device__ operator f32() const { return __uint_as_float((u32)bits << 16); }
};

static_assert(sizeof(bf16) == 2, "bf16 is stored in two bytes");

template <typename T> __device__ inline T min_of(T a, T b) { return b < a ? b : a; }
template <typename T> __device__ inline T max_of(T a, T b) { return a < b ? b : a; }
template <typename T> __device__ inline T clamp_to(T x, T low, T high) { return min_of(max_of(x, low), high); }

// Index of this thread in a grid of one dimension, and the number of its threads.
__device__ inline u64 thread_index() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline u64 thread_count() { return (u64)gridDim.x * blockDim.x; }
