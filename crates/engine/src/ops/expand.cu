// The length regulator (Ren et al. 2019, FastSpeech): repeats the vector of each token for its duration, and its
// adjoint, the sum over the frames of each token.

// The cumulative sum of the durations of a row, clamped to the row's end: a block per row, a block-wide prefix sum for
// every 256 tokens. Clamping after every token gives the same as clamping the sum.
extern "C" __global__ void __launch_bounds__(256)
    token_ends(const i32* durations, const u32* text_starts, const u32* mel_starts, i32* ends) {
    __shared__ u64 warp_sums[8];
    Row text(text_starts, blockIdx.x), mel(mel_starts, blockIdx.x);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 before = 0;
    for (u32 first = 0; first < text.frames; first += 256) {
        u32 token = first + threadIdx.x;
        u64 sum = token < text.frames ? (u64)max_of(durations[text.start + token], 0) : 0;
#pragma unroll
        for (u32 offset = 1; offset < 32; offset *= 2) {
            u64 other = __shfl_up_sync(0xffffffffu, sum, offset);
            if (lane >= offset) sum += other;
        }
        if (lane == 31) warp_sums[warp] = sum;
        __syncthreads();
        u64 all = before;
        for (u32 i = 0; i < 8; i++) {
            if (i < warp) sum += warp_sums[i];
            all += warp_sums[i];
        }
        if (token < text.frames) ends[text.start + token] = (i32)(mel.start + min_of(before + sum, (u64)mel.frames));
        before = all;
        __syncthreads();
    }
}

// The token that `frame` belongs to: the first that ends after it, by binary search; the number of tokens if there is
// none.
__device__ inline u32 token_at(const i32* ends, u32 tokens, u32 frame) {
    u32 low = 0, high = tokens;
    while (low < high) {
        u32 middle = (low + high) / 2;
        if ((u32)ends[middle] <= frame) low = middle + 1; else high = middle;
    }
    return low;
}

template <u32 N, typename T>
__device__ inline void expand(const T* x, const i32* ends, Row text, Row mel, T* out, u32 channels) {
    each_element<N>(mel.frames, channels, [&](u32 frame, u32 channel) {
        u32 token = token_at(ends + text.start, text.frames, mel.start + frame);
        T* to = out + (u64)(mel.start + frame) * channels + channel;
        if (token < text.frames) {
            copy_elements<N>(x + (u64)(text.start + token) * channels + channel, to);
        } else {
            zero_elements<N>(to);
        }
    });
}

template <u32 N, typename T>
__device__ inline void sum_tokens(const T* gradient, const i32* ends, Row text, Row mel, T* out, u32 channels) {
    each_element<N>(text.frames, channels, [&](u32 token, u32 channel) {
        u32 from = token == 0 ? mel.start : (u32)ends[text.start + token - 1], to = (u32)ends[text.start + token];
        f32 sum[N] = {};
#pragma unroll 4
        for (u32 frame = from; frame < to; frame++) {
            f32 g[N];
            load_elements(gradient + (u64)frame * channels + channel, g);
#pragma unroll
            for (u32 n = 0; n < N; n++) sum[n] += g[n];
        }
        store_elements(out + (u64)(text.start + token) * channels + channel, sum);
    });
}

template <typename T>
__device__ inline void expand_row(const T* x, const i32* ends, const u32* text_starts, const u32* mel_starts, T* out,
                                  u32 channels) {
    Row text(text_starts, blockIdx.y), mel(mel_starts, blockIdx.y);
    if (channels % VECTOR<T> == 0) {
        expand<VECTOR<T>>(x, ends, text, mel, out, channels);
    } else {
        expand<1>(x, ends, text, mel, out, channels);
    }
}

template <typename T>
__device__ inline void sum_row(const T* gradient, const i32* ends, const u32* text_starts, const u32* mel_starts,
                               T* out, u32 channels) {
    Row text(text_starts, blockIdx.y), mel(mel_starts, blockIdx.y);
    if (channels % VECTOR<T> == 0) {
        sum_tokens<VECTOR<T>>(gradient, ends, text, mel, out, channels);
    } else {
        sum_tokens<1>(gradient, ends, text, mel, out, channels);
    }
}

#define KERNELS(T)                                                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                                           \
        expand_##T(const T* x, const i32* ends, const u32* text_starts, const u32* mel_starts, T* out,          \
                   u32 channels) {                                                                              \
        expand_row(x, ends, text_starts, mel_starts, out, channels);                                            \
    }                                                                                                           \
    extern "C" __global__ void __launch_bounds__(256)                                                           \
        expand_gradient_##T(const T* x, const i32* ends, const u32* text_starts, const u32* mel_starts, T* out, \
                            u32 channels) {                                                                     \
        sum_row(x, ends, text_starts, mel_starts, out, channels);                                               \
    }

KERNELS(f32)
KERNELS(bf16)
