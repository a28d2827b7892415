// What the norms share: a warp normalises a frame, a block makes the gradient of a stretch of frames.

constexpr f32 EPSILON = 1e-5f;
// Frames of a stretch, as norm.rs has it.
constexpr u32 FRAMES_OF_A_PIECE = 32;
constexpr u32 NORM_THREADS = 256, NORM_WARPS = NORM_THREADS / 32;

// Kernels are made for frames of up to CHANNELS channels, which the lanes of a warp hold and so read once, and for all
// others. One for all frames would give the registers of the longest to the shortest, and fewer warps would be at work.
constexpr u32 other = 0;
// Chunks of N elements that a lane holds.
template <u32 N, u32 CHANNELS> constexpr u32 CHUNKS = CHANNELS / (32 * N);
// Blocks of a gradient that a multiprocessor has registers for at least: as many as there can be without spilling any.
template <typename T> constexpr u32 gradients(u32 channels) {
    if (channels == other) return 1;
    if (channels <= 256) return 4;
    if (WIDTH<T> == 4) return channels <= 768 ? 2 : 1;
    return channels <= 512 ? 3 : 2;
}

// Calls work(chunk, first element) for the chunks of a frame that this lane holds.
template <u32 N, u32 CHANNELS, typename F> __device__ inline void each_held(u32 columns, F work) {
#pragma unroll
    for (u32 chunk = 0; chunk < CHUNKS<N, CHANNELS>; chunk++) {
        u32 i = (chunk * 32 + threadIdx.x % 32) * N;
        if (i < columns) work(chunk, i);
    }
}

// The same for frames of any size.
template <u32 N, typename F> __device__ inline void each_chunk(u32 columns, F work) {
    for (u32 i = threadIdx.x % 32 * N; i < columns; i += 32 * N) work(i);
}

// What a frame becomes: its gain is `one` + gain.
template <typename T> struct Affine {
    const T *gain, *bias;
    f32 one;
};

// Writes (x - mean) scale gain + bias.
template <u32 N, typename T>
__device__ inline void write_normal(const f32 (&x)[N], u32 i, Affine<T> to, f32 mean, f32 scale, T* out) {
    f32 gain[N], bias[N], y[N];
    take(to.gain + i, gain);
    take(to.bias + i, bias);
#pragma unroll
    for (u32 n = 0; n < N; n++) y[n] = (x[n] - mean) * scale * (to.one + gain[n]) + bias[n];
    give(out + i, y);
}

__device__ inline f32 inverse_root(f32 variance) { return 1.f / sqrtf(variance + EPSILON); }

template <u32 N> __device__ inline void add_up(const f32 (&x)[N], f32& sum) {
#pragma unroll
    for (u32 n = 0; n < N; n++) sum += x[n];
}

template <u32 N> __device__ inline void add_squares(const f32 (&x)[N], f32 mean, f32& sum) {
#pragma unroll
    for (u32 n = 0; n < N; n++) sum += (x[n] - mean) * (x[n] - mean);
}

__device__ inline void keep(f32* kept, f32 mean, f32 scale) {
    if (threadIdx.x % 32 == 0) {
        kept[0] = mean;
        kept[1] = scale;
    }
}

// One frame, by a warp, read once.
template <u32 CHANNELS, typename T>
__device__ inline void normalize_held(const T* x, u32 columns, Affine<T> to, T* out, f32* kept) {
    constexpr u32 N = WIDTH<T>;
    f32 held[CHUNKS<N, CHANNELS>][N], sum = 0.f, squares = 0.f;
    each_held<N, CHANNELS>(columns, [&](u32 chunk, u32 i) { take(x + i, held[chunk]); });
    each_held<N, CHANNELS>(columns, [&](u32 chunk, u32) { add_up(held[chunk], sum); });
    f32 mean = warp_sum(sum) / (f32)columns;
    each_held<N, CHANNELS>(columns, [&](u32 chunk, u32) { add_squares(held[chunk], mean, squares); });
    f32 scale = inverse_root(warp_sum(squares) / (f32)columns);
    each_held<N, CHANNELS>(columns, [&](u32 chunk, u32 i) { write_normal(held[chunk], i, to, mean, scale, out); });
    keep(kept, mean, scale);
}

// One frame of any size, by a warp.
template <u32 N, typename T>
__device__ inline void normalize_long(const T* x, u32 columns, Affine<T> to, T* out, f32* kept) {
    f32 sum = 0.f, squares = 0.f, held[N];
    each_chunk<N>(columns, [&](u32 i) { take(x + i, held), add_up(held, sum); });
    f32 mean = warp_sum(sum) / (f32)columns;
    each_chunk<N>(columns, [&](u32 i) { take(x + i, held), add_squares(held, mean, squares); });
    f32 scale = inverse_root(warp_sum(squares) / (f32)columns);
    each_chunk<N>(columns, [&](u32 i) { take(x + i, held), write_normal(held, i, to, mean, scale, out); });
    keep(kept, mean, scale);
}

template <u32 CHANNELS, typename T>
__device__ inline void normalize_frame(const T* x, u32 columns, Affine<T> to, T* out, f32* kept) {
    if constexpr (CHANNELS != other) {
        normalize_held<CHANNELS>(x, columns, to, out, kept);
    } else if (columns % WIDTH<T> != 0) {
        normalize_long<1>(x, columns, to, out, kept);
    } else {
        normalize_long<WIDTH<T>>(x, columns, to, out, kept);
    }
}

// What the gradient of a stretch is made from: its first frame, what the forward pass kept of it, and its gradient.
template <typename T> struct Stretch {
    const T *x, *gradient;
    // What is added to the gradient of x; null where nothing is.
    const T* more;
    const f32* kept;
    T* out;
    u32 frames, columns;
};

// Writes the gradient of one chunk of x, and what is added to it.
template <u32 N, typename T>
__device__ inline void write_gradient(const f32 (&x)[N], const f32 (&g)[N], const f32 (&gain)[N], f32 one, f32 mean,
                                      f32 scale, f32 level, f32 tilt, const T* more, T* out) {
    f32 y[N], also[N] = {};
    if (more) take(more, also);
#pragma unroll
    for (u32 n = 0; n < N; n++)
        y[n] = (g[n] * (one + gain[n]) - level - (x[n] - mean) * scale * tilt) * scale + also[n];
    give(out, y);
}

// By a block. Every frame is read once; sums for gain and bias (one behind the other in `sums`) stay in the registers of
// eight warps until the last frame.
template <u32 CHANNELS, typename T> __device__ inline void gradient_held(Stretch<T> s, Affine<T> to, f32* sums) {
    constexpr u32 N = WIDTH<T>, HELD = CHUNKS<N, CHANNELS>;
    __shared__ f32 shared[NORM_WARPS][32 * N];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    f32 of_gain[HELD][N] = {}, of_bias[HELD][N] = {};
    for (u32 frame = warp; frame < s.frames; frame += NORM_WARPS) {
        u64 first = (u64)frame * s.columns;
        f32 mean = s.kept[2 * frame], scale = s.kept[2 * frame + 1], level = 0.f, tilt = 0.f;
        // As they are stored: half the registers for bf16.
        uint4 held_x[HELD], held_g[HELD];
        each_held<N, CHANNELS>(s.columns, [&](u32 chunk, u32 i) {
            held_x[chunk] = *reinterpret_cast<const uint4*>(s.x + first + i);
            held_g[chunk] = *reinterpret_cast<const uint4*>(s.gradient + first + i);
        });
        each_held<N, CHANNELS>(s.columns, [&](u32 chunk, u32 i) {
            f32 x[N], g[N], gain[N];
            take(reinterpret_cast<const T*>(&held_x[chunk]), x);
            take(reinterpret_cast<const T*>(&held_g[chunk]), g);
            take(to.gain + i, gain);
#pragma unroll
            for (u32 n = 0; n < N; n++) {
                f32 normal = (x[n] - mean) * scale, slope = g[n] * (to.one + gain[n]);
                of_gain[chunk][n] += g[n] * normal;
                of_bias[chunk][n] += g[n];
                level += slope;
                tilt += slope * normal;
            }
        });
        level = warp_sum(level) / (f32)s.columns;
        tilt = warp_sum(tilt) / (f32)s.columns;
        each_held<N, CHANNELS>(s.columns, [&](u32 chunk, u32 i) {
            f32 x[N], g[N], gain[N];
            take(reinterpret_cast<const T*>(&held_x[chunk]), x);
            take(reinterpret_cast<const T*>(&held_g[chunk]), g);
            take(to.gain + i, gain);
            const T* more = s.more ? s.more + first + i : nullptr;
            write_gradient(x, g, gain, to.one, mean, scale, level, tilt, more, s.out + first + i);
        });
    }
#pragma unroll
    for (u32 chunk = 0; chunk < HELD; chunk++) {
#pragma unroll
        for (u32 which = 0; which < 2; which++) {
            __syncthreads();
#pragma unroll
            for (u32 n = 0; n < N; n++) shared[warp][n * 32 + lane] = which ? of_bias[chunk][n] : of_gain[chunk][n];
            __syncthreads();
            u32 column = (chunk * 32 + lane) * N + warp;
            if (warp < N && column < s.columns) {
                f32 sum = 0.f;
                for (u32 i = 0; i < NORM_WARPS; i++) sum += shared[i][threadIdx.x];
                sums[which * s.columns + column] = sum;
            }
        }
    }
}

// The same for frames of any size: a warp makes the gradient of a frame, then a thread sums a column.
template <typename T> __device__ inline void gradient_long(Stretch<T> s, Affine<T> to, f32* sums) {
    for (u32 frame = threadIdx.x / 32; frame < s.frames; frame += NORM_WARPS) {
        const T *x = s.x + (u64)frame * s.columns, *gradient = s.gradient + (u64)frame * s.columns;
        const T* more = s.more ? s.more + (u64)frame * s.columns : nullptr;
        T* out = s.out + (u64)frame * s.columns;
        f32 mean = s.kept[2 * frame], scale = s.kept[2 * frame + 1], level = 0.f, tilt = 0.f;
        each_chunk<1>(s.columns, [&](u32 i) {
            f32 slope = (f32)gradient[i] * (to.one + (f32)to.gain[i]);
            level += slope;
            tilt += slope * (((f32)x[i] - mean) * scale);
        });
        level = warp_sum(level) / (f32)s.columns;
        tilt = warp_sum(tilt) / (f32)s.columns;
        each_chunk<1>(s.columns, [&](u32 i) {
            f32 x_i[1] = {(f32)x[i]}, g[1] = {(f32)gradient[i]}, gain[1] = {(f32)to.gain[i]};
            write_gradient(x_i, g, gain, to.one, mean, scale, level, tilt, more ? more + i : more, out + i);
        });
    }
    for (u32 column = threadIdx.x; column < s.columns; column += NORM_THREADS) {
        f32 of_gain = 0.f, of_bias = 0.f;
        for (u32 frame = 0; frame < s.frames; frame++) {
            u64 at = (u64)frame * s.columns + column;
            f32 g = (f32)s.gradient[at];
            of_gain += g * (((f32)s.x[at] - s.kept[2 * frame]) * s.kept[2 * frame + 1]);
            of_bias += g;
        }
        sums[column] = of_gain;
        sums[s.columns + column] = of_bias;
    }
}

template <u32 CHANNELS, typename T> __device__ inline void stretch_gradient(Stretch<T> s, Affine<T> to, f32* sums) {
    if constexpr (CHANNELS != other) {
        gradient_held<CHANNELS>(s, to, sums);
    } else {
        gradient_long(s, to, sums);
    }
}
