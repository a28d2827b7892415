// What all weights of a query lose of their gradient. A source of its own: tensor cores need it and no plain attention, which
// takes as long to compile as they do.

// out[i] = products of `size` neighbours of a and b, by eight lanes each. `count` of them.
template <typename T> __device__ void levels_of(u64 count, u32 size, const T* a, const T* b, f32* out) {
    constexpr u32 EACH = 16 / sizeof(T);
    struct alignas(16) Piece {
        T of[EACH];
    };
    const u64 number = thread_index() / 8, at = number * size;
    const u32 lane = threadIdx.x % 8;
    f32 sum = 0.0f;
    if (number < count && size % EACH == 0) {
        for (u32 i = lane * EACH; i < size; i += 8 * EACH) {
            Piece x = *(const Piece*)(a + at + i), y = *(const Piece*)(b + at + i);
#pragma unroll
            for (u32 j = 0; j < EACH; j++) sum += (f32)x.of[j] * (f32)y.of[j];
        }
    } else if (number < count) {
        for (u32 i = lane; i < size; i += 8) sum += (f32)a[at + i] * (f32)b[at + i];
    }
    for (u32 apart = 4; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
    if (lane == 0 && number < count) out[number] = sum;
}

#define KERNEL(T)                                                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                                          \
        attention_levels_##T(u64 count, u32 size, const T* mixtures, const T* gradient, f32* levels) {         \
        levels_of(count, size, mixtures, gradient, levels);                                                    \
    }

KERNEL(f32)
KERNEL(bf16)
