// What the norms share: a warp normalises a frame, a block makes the gradient of a stretch of frames.

constexpr f32 EPSILON = 1e-5f;
// Frames of a stretch, as norm.rs has it.
constexpr u32 FRAMES_OF_A_PIECE = 32;

// Kernels are made for frames of up to CHANNELS channels, and for all others. Where there is a number, a frame is read
// once: lanes hold it between them, as it is stored.
constexpr u32 other = 0;
// A frame is normalised by a warp. Frames that a block has in hand at once, as norm.rs has them, and the blocks that a
// multiprocessor has room for: 64 registers are left to a thread, and 128 where a lane holds more than 64 bytes.
constexpr u32 NORMALIZED = 8, NORMAL_THREADS = 32 * NORMALIZED;
template <u32 CHANNELS, typename T> constexpr u32 NORMAL_BLOCKS = CHANNELS * sizeof(T) > 2048 ? 2 : 4;
// Its gradient takes more registers for an element. So a lane has 8 of them, 16 bytes of bf16, and a frame is a group's
// of several warps. Any other frame is a warp's.
template <u32 CHANNELS> constexpr u32 LANES = CHANNELS == other ? 32 : CHANNELS / 8;
// Frames that a block has in hand at once, as norm.rs has them. Of 768 channels: two blocks of 4 frames fit a
// multiprocessor, and only one of 8.
template <u32 CHANNELS> constexpr u32 GRADIENTS = LANES<CHANNELS> == 96 ? 4 : 8;
// The threads of a block, and the blocks that a multiprocessor has room for: 64 registers are left to a thread here too.
template <u32 CHANNELS> constexpr u32 GRADIENT_THREADS = LANES<CHANNELS> * GRADIENTS<CHANNELS>;
template <u32 CHANNELS> constexpr u32 GRADIENT_BLOCKS = 1024 / GRADIENT_THREADS<CHANNELS>;

// What one of LANES_OF_FRAME lanes holds of a frame of up to CHANNELS channels: bf16 takes half the registers.
template <typename T, u32 CHANNELS, u32 LANES_OF_FRAME> struct Held {
    static constexpr u32 N = WIDTH<T>, CHUNKS = CHANNELS / LANES_OF_FRAME / N;
    uint4 chunks[CHUNKS];

    // Calls work(chunk, first element) for the chunks of a frame that this lane holds.
    template <typename F> static __device__ void each(u32 columns, F work) {
#pragma unroll
        for (u32 chunk = 0; chunk < CHUNKS; chunk++) {
            u32 i = (chunk * LANES_OF_FRAME + threadIdx.x % LANES_OF_FRAME) * N;
            if (i < columns) work(chunk, i);
        }
    }

    __device__ void hold(const T* frame, u32 columns) {
        each(columns, [&](u32 chunk, u32 i) { chunks[chunk] = *reinterpret_cast<const uint4*>(frame + i); });
    }

    __device__ void get(u32 chunk, f32 (&x)[N]) const { load_wide(reinterpret_cast<const T*>(&chunks[chunk]), x); }

    // The compiler forgets what was made of the elements so far, and makes it anew rather than keep it in registers.
    __device__ void renew() {
#pragma unroll
        for (u32 i = 0; i < CHUNKS; i++)
            asm volatile("" : "+r"(chunks[i].x), "+r"(chunks[i].y), "+r"(chunks[i].z), "+r"(chunks[i].w));
    }
};

// Calls work(first element) for what a lane has of a frame of any size.
template <u32 N, typename F> __device__ inline void each_chunk(u32 columns, F work) {
    for (u32 i = threadIdx.x % 32 * N; i < columns; i += 32 * N) work(i);
}

// What a frame becomes: its gain is `one` + gain. One is 1 or -0, which makes no addition; 0 would, for -0 + 0 is 0.
template <typename T> struct Affine {
    const T *gain, *bias;
    f32 one;
};

// Writes (x - mean) scale (one + gain) + bias.
template <u32 N, typename T>
__device__ inline void write_normal(const f32 (&x)[N], const f32 (&gain)[N], const f32 (&bias)[N], f32 one, f32 mean,
                                    f32 scale, T* out) {
    f32 y[N];
#pragma unroll
    for (u32 n = 0; n < N; n++) y[n] = (x[n] - mean) * scale * (one + gain[n]) + bias[n];
    give(out, y);
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
    using Part = Held<T, CHANNELS, 32>;
    // Gains and biases with the frame, where registers suffice: all are then waited for once.
    constexpr bool TOGETHER = Part::CHUNKS <= 2;
    Part held, gains, biases;
    held.hold(x, columns);
    if constexpr (TOGETHER) gains.hold(to.gain, columns), biases.hold(to.bias, columns);
    f32 part[Part::N], sum = 0.f, squares = 0.f;
    Part::each(columns, [&](u32 chunk, u32) { held.get(chunk, part), add_up(part, sum); });
    f32 mean = warp_sum(sum) / (f32)columns;
    Part::each(columns, [&](u32 chunk, u32) { held.get(chunk, part), add_squares(part, mean, squares); });
    f32 scale = inverse_root(warp_sum(squares) / (f32)columns);
    if constexpr (!TOGETHER) gains.hold(to.gain, columns), biases.hold(to.bias, columns);
    Part::each(columns, [&](u32 chunk, u32 i) {
        f32 gain[Part::N], bias[Part::N];
        held.get(chunk, part), gains.get(chunk, gain), biases.get(chunk, bias);
        write_normal(part, gain, bias, to.one, mean, scale, out + i);
    });
    keep(kept, mean, scale);
}

// One frame of any size, by a warp.
template <u32 N, typename T>
__device__ inline void normalize_long(const T* x, u32 columns, Affine<T> to, T* out, f32* kept) {
    f32 sum = 0.f, squares = 0.f, held[N], gain[N], bias[N];
    each_chunk<N>(columns, [&](u32 i) { take(x + i, held), add_up(held, sum); });
    f32 mean = warp_sum(sum) / (f32)columns;
    each_chunk<N>(columns, [&](u32 i) { take(x + i, held), add_squares(held, mean, squares); });
    f32 scale = inverse_root(warp_sum(squares) / (f32)columns);
    each_chunk<N>(columns, [&](u32 i) {
        take(x + i, held), take(to.gain + i, gain), take(to.bias + i, bias);
        write_normal(held, gain, bias, to.one, mean, scale, out + i);
    });
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

// A stretch of frames, and what its gradient is made from: the tensors, what the forward pass kept, and the gradient.
// They are as the kernel was given them, which needs no registers; the stretch begins at frame `first` of each.
template <typename T> struct Stretch {
    const T *x, *gradient;
    // What is added to the gradient of x, where anything is.
    const T* more;
    bool has_more;
    const f32* kept;
    T* out;
    u32 first, frames, columns;
};

// Writes the gradient of one chunk of x, and what is added to it.
template <u32 N, typename T>
__device__ inline void write_gradient(const f32 (&x)[N], const f32 (&g)[N], const f32 (&gain)[N], const f32 (&more)[N],
                                      f32 one, f32 mean, f32 scale, f32 level, f32 tilt, T* out) {
    f32 y[N];
#pragma unroll
    for (u32 n = 0; n < N; n++)
        y[n] = (g[n] * (one + gain[n]) - level - (x[n] - mean) * scale * tilt) * scale + more[n];
    give(out, y);
}

// Waits for all threads of a group at a barrier of its own; 0 is the block's. Numbers are constants: a block whose
// barriers are not known beforehand takes all 16 that it can have, of the 64 of a multiprocessor.
template <u32 THREADS, u32 LAST> __device__ inline void meet(u32 barrier) {
    if (barrier == LAST) {
        asm volatile("bar.sync %0, %1;" ::"n"(LAST), "n"(THREADS) : "memory");
    } else if constexpr (LAST > 1) {
        meet<THREADS, LAST - 1>(barrier);
    }
}

// Two numbers of each warp of a group, told to all its lanes. `turn` is 0 and 1 by turns: a warp that is a frame ahead
// does not write where others have yet to read, and two frames ahead it cannot be.
template <u32 CHANNELS, u32 FRAMES>
__device__ inline void tell(f32 first, f32 second, u32 turn, float2 (&told)[LANES<CHANNELS> / 32]) {
    constexpr u32 WARPS = LANES<CHANNELS> / 32;
    if constexpr (WARPS == 1) {
        told[0] = make_float2(first, second);
    } else {
        __shared__ float2 board[2][FRAMES][WARPS];
        float2* mine = board[turn][threadIdx.x / LANES<CHANNELS>];
        if (threadIdx.x % 32 == 0) mine[threadIdx.x % LANES<CHANNELS> / 32] = make_float2(first, second);
        meet<LANES<CHANNELS>, FRAMES>(1 + threadIdx.x / LANES<CHANNELS>);
#pragma unroll
        for (u32 warp = 0; warp < WARPS; warp++) told[warp] = mine[warp];
    }
}

// What a lane needs of one frame of a stretch.
template <u32 CHANNELS, typename T> struct InHand {
    Held<T, CHANNELS, LANES<CHANNELS>> x, gradient;
    // Its mean and scale.
    float2 kept;

    __device__ void fetch(const Stretch<T>& s, u32 frame) {
        x.hold(s.x + (u64)(s.first + frame) * s.columns, s.columns);
        gradient.hold(s.gradient + (u64)(s.first + frame) * s.columns, s.columns);
        kept = reinterpret_cast<const float2*>(s.kept)[s.first + frame];
    }
};

// All groups' sums for gain and bias, one behind the other. A thread adds those of a column, in the order of groups.
template <u32 CHANNELS, typename Part, u32 CHUNKS, u32 N>
__device__ inline void write_sums(const f32 (&of_gain)[CHUNKS][N], const f32 (&of_bias)[CHUNKS][N], u32 columns,
                                  f32* sums) {
    __shared__ __align__(16) f32 shared[GRADIENTS<CHANNELS>][CHANNELS];
#pragma unroll
    for (u32 which = 0; which < 2; which++) {
        if (which) __syncthreads();
        Part::each(columns, [&](u32 chunk, u32 i) {
            store_wide(&shared[threadIdx.x / LANES<CHANNELS>][i], which ? of_bias[chunk] : of_gain[chunk]);
        });
        __syncthreads();
#pragma unroll 1
        for (u32 column = threadIdx.x; column < columns; column += GRADIENT_THREADS<CHANNELS>) {
            f32 sum = 0.f;
#pragma unroll
            for (u32 i = 0; i < GRADIENTS<CHANNELS>; i++) sum += shared[i][column];
            sums[which * columns + column] = sum;
        }
    }
}

// By a block. Every frame is read once, and sums for gain and bias stay in registers until the last.
template <u32 CHANNELS, typename T> __device__ inline void gradient_held(Stretch<T> s, Affine<T> to, f32* sums) {
    using Part = Held<T, CHANNELS, LANES<CHANNELS>>;
    constexpr u32 N = Part::N, CHUNKS = Part::CHUNKS, WARPS = LANES<CHANNELS> / 32, FRAMES = GRADIENTS<CHANNELS>;
    // Whether gains stay in registers, and a frame is fetched while its group works on the one before. In f32 both are
    // twice as many registers, which there are not.
    constexpr bool AHEAD = sizeof(T) == 2;
    const f32 share = 1.f / (f32)s.columns;
    f32 of_gain[CHUNKS][N] = {}, of_bias[CHUNKS][N] = {};
    Part gains;
    if constexpr (AHEAD) gains.hold(to.gain, s.columns);
    auto get_gain = [&](u32 chunk, u32 i, f32 (&gain)[N]) {
        if constexpr (AHEAD) gains.get(chunk, gain); else take(to.gain + i, gain);
    };
    InHand<CHANNELS, T> now, next;
    u32 turn = 0, frame = threadIdx.x / LANES<CHANNELS>;
    if (AHEAD && frame < s.frames) next.fetch(s, frame);
#pragma unroll 1
    for (; frame < s.frames; frame += FRAMES, turn ^= 1) {
        if constexpr (AHEAD) now = next; else now.fetch(s, frame);
        Part more = {};
        if (s.has_more) more.hold(s.more + (u64)(s.first + frame) * s.columns, s.columns);
        if (AHEAD && frame + FRAMES < s.frames) next.fetch(s, frame + FRAMES);
        const f32 mean = now.kept.x, scale = now.kept.y;
        f32 x[N], g[N], gain[N], level = 0.f, tilt = 0.f;
        Part::each(s.columns, [&](u32 chunk, u32 i) {
            now.x.get(chunk, x), now.gradient.get(chunk, g), get_gain(chunk, i, gain);
#pragma unroll
            for (u32 n = 0; n < N; n++) {
                f32 normal = (x[n] - mean) * scale, slope = g[n] * (to.one + gain[n]);
                of_gain[chunk][n] += g[n] * normal;
                of_bias[chunk][n] += g[n];
                level += slope;
                tilt += slope * normal;
            }
        });
        float2 told[WARPS];
        tell<CHANNELS, FRAMES>(warp_sum(level), warp_sum(tilt), turn, told);
        level = told[0].x, tilt = told[0].y;
#pragma unroll
        for (u32 warp = 1; warp < WARPS; warp++) level += told[warp].x, tilt += told[warp].y;
        level *= share, tilt *= share;
        now.x.renew(), now.gradient.renew();
        if constexpr (AHEAD) gains.renew();
        Part::each(s.columns, [&](u32 chunk, u32 i) {
            f32 also[N];
            now.x.get(chunk, x), now.gradient.get(chunk, g), get_gain(chunk, i, gain);
            more.get(chunk, also);
            T* out = s.out + (u64)(s.first + frame) * s.columns + i;
            write_gradient(x, g, gain, also, to.one, mean, scale, level, tilt, out);
        });
    }
    write_sums<CHANNELS, Part>(of_gain, of_bias, s.columns, sums);
}

// The same for frames of any size: a warp makes the gradient of a frame, then a thread sums a column.
template <typename T> __device__ inline void gradient_long(Stretch<T> s, Affine<T> to, f32* sums) {
    for (u32 i = threadIdx.x / 32; i < s.frames; i += GRADIENTS<other>) {
        const u64 frame = s.first + i, at = frame * s.columns;
        f32 mean = s.kept[2 * frame], scale = s.kept[2 * frame + 1], level = 0.f, tilt = 0.f;
        each_chunk<1>(s.columns, [&](u32 i) {
            f32 slope = (f32)s.gradient[at + i] * (to.one + (f32)to.gain[i]);
            level += slope;
            tilt += slope * (((f32)s.x[at + i] - mean) * scale);
        });
        level = warp_sum(level) / (f32)s.columns;
        tilt = warp_sum(tilt) / (f32)s.columns;
        each_chunk<1>(s.columns, [&](u32 i) {
            f32 x[1] = {(f32)s.x[at + i]}, g[1] = {(f32)s.gradient[at + i]}, gain[1] = {(f32)to.gain[i]};
            f32 more[1] = {s.has_more ? (f32)s.more[at + i] : 0.f};
            write_gradient(x, g, gain, more, to.one, mean, scale, level, tilt, s.out + at + i);
        });
    }
    for (u32 column = threadIdx.x; column < s.columns; column += GRADIENT_THREADS<other>) {
        f32 of_gain = 0.f, of_bias = 0.f;
        for (u32 i = 0; i < s.frames; i++) {
            const u64 frame = s.first + i, at = frame * s.columns + column;
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

// Makes the kernels of a norm for every size of frames, in both types.
#define FOR_EVERY_SIZE(KERNELS)                                                                                       \
    KERNELS(256, f32) KERNELS(512, f32) KERNELS(768, f32) KERNELS(1024, f32) KERNELS(other, f32)                      \
    KERNELS(256, bf16) KERNELS(512, bf16) KERNELS(768, bf16) KERNELS(1024, bf16) KERNELS(other, bf16)
