// Layer norm (Ba et al. 2016), forward and backward, shared by layer_norm.cu and adaptive_norm.cu. With
// norm = (x - mean) · rstd, rstd = 1/√(variance + ε) and dnorm = dy · gain:
//   y  = norm · gain + bias
//   dx = (dnorm - dnorm_mean - norm · dnorm_norm_mean) · rstd
// where dnorm_mean and dnorm_norm_mean are the means of dnorm and of dnorm · norm over the channels of a frame.
//
// A warp normalises a frame; a block computes the gradient of a block of frames.

constexpr f32 EPSILON = 1e-5f;
// Frames per block of the backward pass, as in norm.rs.
constexpr u32 FRAMES_PER_BLOCK = 32;

// There are kernels for frames of up to CHANNELS channels, and `other` for the rest. With a CHANNELS, a frame is read once
// and stays in registers in its storage type, distributed over the lanes.
constexpr u32 other = 0;
// Forward pass: a warp per frame. Frames that a block processes at once, as in norm.rs, and resident blocks per
// multiprocessor: that leaves 64 registers per thread, or 128 where a lane holds more than 64 bytes.
constexpr u32 FORWARD_FRAMES = 8, FORWARD_THREADS = 32 * FORWARD_FRAMES;
template <u32 CHANNELS, typename T> constexpr u32 FORWARD_BLOCKS_PER_SM = CHANNELS * sizeof(T) > 2048 ? 2 : 4;
// The backward pass needs more registers per element. So a lane holds 8 elements, 16 bytes of bf16, and a group of several
// warps shares a frame. For `other` a warp processes a frame.
template <u32 CHANNELS> constexpr u32 LANES = CHANNELS == other ? 32 : CHANNELS / 8;
// Frames that a block processes at once, as in norm.rs. With 768 channels a multiprocessor has room for two blocks of 4
// frames, or for one of 8.
template <u32 CHANNELS> constexpr u32 BACKWARD_FRAMES = LANES<CHANNELS> == 96 ? 4 : 8;
// Threads per block, and resident blocks per multiprocessor: 64 registers per thread here too.
template <u32 CHANNELS> constexpr u32 BACKWARD_THREADS = LANES<CHANNELS> * BACKWARD_FRAMES<CHANNELS>;
template <u32 CHANNELS> constexpr u32 BACKWARD_BLOCKS_PER_SM = 1024 / BACKWARD_THREADS<CHANNELS>;

// The part of a frame of up to CHANNELS channels that one of LANES_PER_FRAME lanes holds in registers, in its storage type:
// bf16 takes half the registers of f32.
template <typename T, u32 CHANNELS, u32 LANES_PER_FRAME> struct FrameRegisters {
    static constexpr u32 N = VECTOR<T>, CHUNKS = CHANNELS / LANES_PER_FRAME / N;
    uint4 chunks[CHUNKS];

    // Calls work(chunk, first element) for the chunks of a frame that this lane holds.
    template <typename F> static __device__ void each(u32 columns, F work) {
#pragma unroll
        for (u32 chunk = 0; chunk < CHUNKS; chunk++) {
            u32 i = (chunk * LANES_PER_FRAME + threadIdx.x % LANES_PER_FRAME) * N;
            if (i < columns) work(chunk, i);
        }
    }

    __device__ void load(const T* frame, u32 columns) {
        each(columns, [&](u32 chunk, u32 i) { chunks[chunk] = *reinterpret_cast<const uint4*>(frame + i); });
    }

    // A chunk as floats.
    __device__ void get(u32 chunk, f32 (&x)[N]) const { load_vec(reinterpret_cast<const T*>(&chunks[chunk]), x); }

    // An optimisation barrier: the compiler recomputes values derived from the elements instead of holding them in
    // registers.
    __device__ void forget_derived() {
#pragma unroll
        for (u32 i = 0; i < CHUNKS; i++)
            asm volatile("" : "+r"(chunks[i].x), "+r"(chunks[i].y), "+r"(chunks[i].z), "+r"(chunks[i].w));
    }
};

// Calls work(first element) for this lane's chunks of a frame of any size.
template <u32 N, typename F> __device__ inline void each_chunk(u32 columns, F work) {
    for (u32 i = threadIdx.x % 32 * N; i < columns; i += 32 * N) work(i);
}

// The affine transform after the norm. The factor is `gain_offset` + gain, with an offset of 1 or -0. Adding -0 changes no
// bit; 0 would, because -0 + 0 is 0.
template <typename T> struct Affine {
    const T *gain, *bias;
    f32 gain_offset;
};

// Stores (x - mean) · rstd · (gain_offset + gain) + bias.
template <u32 N, typename T>
__device__ inline void store_normalized(const f32 (&x)[N], const f32 (&gain)[N], const f32 (&bias)[N], f32 gain_offset,
                                        f32 mean, f32 rstd, T* out) {
    f32 y[N];
#pragma unroll
    for (u32 n = 0; n < N; n++) y[n] = (x[n] - mean) * rstd * (gain_offset + gain[n]) + bias[n];
    store_elements(out, y);
}

__device__ inline f32 rstd_of(f32 variance) { return 1.f / sqrtf(variance + EPSILON); }

template <u32 N> __device__ inline void add_elements(const f32 (&x)[N], f32& sum) {
#pragma unroll
    for (u32 n = 0; n < N; n++) sum += x[n];
}

template <u32 N> __device__ inline void add_squared_deviations(const f32 (&x)[N], f32 mean, f32& sum) {
#pragma unroll
    for (u32 n = 0; n < N; n++) sum += (x[n] - mean) * (x[n] - mean);
}

// Saves the statistics of a frame for the backward pass.
__device__ inline void save_statistics(f32* saved, f32 mean, f32 rstd) {
    if (threadIdx.x % 32 == 0) {
        saved[0] = mean;
        saved[1] = rstd;
    }
}

// One frame by a warp, read once.
template <u32 CHANNELS, typename T>
__device__ inline void normalize_in_registers(const T* x, u32 columns, Affine<T> affine, T* out, f32* saved) {
    using Registers = FrameRegisters<T, CHANNELS, 32>;
    // With enough registers, gains and biases are loaded together with the frame: one memory latency for all.
    constexpr bool LOAD_TOGETHER = Registers::CHUNKS <= 2;
    Registers frame, gains, biases;
    frame.load(x, columns);
    if constexpr (LOAD_TOGETHER) gains.load(affine.gain, columns), biases.load(affine.bias, columns);
    f32 part[Registers::N], sum = 0.f, squares = 0.f;
    Registers::each(columns, [&](u32 chunk, u32) { frame.get(chunk, part), add_elements(part, sum); });
    f32 mean = warp_sum(sum) / (f32)columns;
    Registers::each(columns,
                    [&](u32 chunk, u32) { frame.get(chunk, part), add_squared_deviations(part, mean, squares); });
    f32 rstd = rstd_of(warp_sum(squares) / (f32)columns);
    if constexpr (!LOAD_TOGETHER) gains.load(affine.gain, columns), biases.load(affine.bias, columns);
    Registers::each(columns, [&](u32 chunk, u32 i) {
        f32 gain[Registers::N], bias[Registers::N];
        frame.get(chunk, part), gains.get(chunk, gain), biases.get(chunk, bias);
        store_normalized(part, gain, bias, affine.gain_offset, mean, rstd, out + i);
    });
    save_statistics(saved, mean, rstd);
}

// One frame of any size by a warp, in three passes over memory.
template <u32 N, typename T>
__device__ inline void normalize_streaming(const T* x, u32 columns, Affine<T> affine, T* out, f32* saved) {
    f32 sum = 0.f, squares = 0.f, part[N], gain[N], bias[N];
    each_chunk<N>(columns, [&](u32 i) { load_elements(x + i, part), add_elements(part, sum); });
    f32 mean = warp_sum(sum) / (f32)columns;
    each_chunk<N>(columns, [&](u32 i) { load_elements(x + i, part), add_squared_deviations(part, mean, squares); });
    f32 rstd = rstd_of(warp_sum(squares) / (f32)columns);
    each_chunk<N>(columns, [&](u32 i) {
        load_elements(x + i, part), load_elements(affine.gain + i, gain), load_elements(affine.bias + i, bias);
        store_normalized(part, gain, bias, affine.gain_offset, mean, rstd, out + i);
    });
    save_statistics(saved, mean, rstd);
}

template <u32 CHANNELS, typename T>
__device__ inline void normalize_frame(const T* x, u32 columns, Affine<T> affine, T* out, f32* saved) {
    if constexpr (CHANNELS != other) {
        normalize_in_registers<CHANNELS>(x, columns, affine, out, saved);
    } else if (columns % VECTOR<T> != 0) {
        normalize_streaming<1>(x, columns, affine, out, saved);
    } else {
        normalize_streaming<VECTOR<T>>(x, columns, affine, out, saved);
    }
}

// A block of frames, and the tensors of its backward pass. The pointers are the kernel's arguments unchanged, which takes no
// registers; the block begins at frame `first` of each tensor.
template <typename T> struct FrameBlock {
    const T *x, *dy;
    // The gradient of a residual connection, added to dx if `has_dresidual`.
    const T* dresidual;
    bool has_dresidual;
    const f32* saved;
    T* dx;
    u32 first, frames, columns;
};

// Stores dx of one chunk, plus dresidual.
template <u32 N, typename T>
__device__ inline void store_dx(const f32 (&x)[N], const f32 (&dy)[N], const f32 (&gain)[N], const f32 (&dresidual)[N],
                                f32 gain_offset, f32 mean, f32 rstd, f32 dnorm_mean, f32 dnorm_norm_mean, T* dx) {
    f32 y[N];
#pragma unroll
    for (u32 n = 0; n < N; n++)
        y[n] = (dy[n] * (gain_offset + gain[n]) - dnorm_mean - (x[n] - mean) * rstd * dnorm_norm_mean) * rstd +
               dresidual[n];
    store_elements(dx, y);
}

// A named barrier for the threads of one group; barrier 0 is __syncthreads. Barrier numbers are immediates: a block whose
// barriers are not known at compile time reserves all 16 that it can have, of the 64 of a multiprocessor.
template <u32 THREADS, u32 LAST> __device__ inline void group_barrier(u32 barrier) {
    if (barrier == LAST) {
        asm volatile("bar.sync %0, %1;" ::"n"(LAST), "n"(THREADS) : "memory");
    } else if constexpr (LAST > 1) {
        group_barrier<THREADS, LAST - 1>(barrier);
    }
}

// Gives every lane of a group the two numbers of each of its warps. `parity` alternates between 0 and 1, a double buffer: a
// warp that is one frame ahead does not overwrite numbers that others have yet to read, and it cannot be two frames ahead.
template <u32 CHANNELS, u32 FRAMES>
__device__ inline void exchange_across_warps(f32 first, f32 second, u32 parity,
                                             float2 (&of_warps)[LANES<CHANNELS> / 32]) {
    constexpr u32 WARPS = LANES<CHANNELS> / 32;
    if constexpr (WARPS == 1) {
        of_warps[0] = make_float2(first, second);
    } else {
        __shared__ float2 shared[2][FRAMES][WARPS];
        float2* of_group = shared[parity][threadIdx.x / LANES<CHANNELS>];
        if (threadIdx.x % 32 == 0) of_group[threadIdx.x % LANES<CHANNELS> / 32] = make_float2(first, second);
        group_barrier<LANES<CHANNELS>, FRAMES>(1 + threadIdx.x / LANES<CHANNELS>);
#pragma unroll
        for (u32 warp = 0; warp < WARPS; warp++) of_warps[warp] = of_group[warp];
    }
}

// A lane's inputs of the backward pass for one frame.
template <u32 CHANNELS, typename T> struct FrameInputs {
    FrameRegisters<T, CHANNELS, LANES<CHANNELS>> x, dy;
    // Mean and rstd.
    float2 saved;

    __device__ void load(const FrameBlock<T>& s, u32 frame) {
        x.load(s.x + (u64)(s.first + frame) * s.columns, s.columns);
        dy.load(s.dy + (u64)(s.first + frame) * s.columns, s.columns);
        saved = reinterpret_cast<const float2*>(s.saved)[s.first + frame];
    }
};

// Stores the block's partial sums of dgain, then those of dbias. One thread adds a column over the groups, in their order.
template <u32 CHANNELS, typename Registers, u32 CHUNKS, u32 N>
__device__ inline void store_partial_sums(const f32 (&dgain)[CHUNKS][N], const f32 (&dbias)[CHUNKS][N], u32 columns,
                                          f32* partial) {
    __shared__ __align__(16) f32 shared[BACKWARD_FRAMES<CHANNELS>][CHANNELS];
#pragma unroll
    for (u32 which = 0; which < 2; which++) {
        if (which) __syncthreads();
        Registers::each(columns, [&](u32 chunk, u32 i) {
            store_vec(&shared[threadIdx.x / LANES<CHANNELS>][i], which ? dbias[chunk] : dgain[chunk]);
        });
        __syncthreads();
#pragma unroll 1
        for (u32 column = threadIdx.x; column < columns; column += BACKWARD_THREADS<CHANNELS>) {
            f32 sum = 0.f;
#pragma unroll
            for (u32 i = 0; i < BACKWARD_FRAMES<CHANNELS>; i++) sum += shared[i][column];
            partial[which * columns + column] = sum;
        }
    }
}

// Backward pass of a block of frames, by a thread block. Every frame is read once; the sums for dgain and dbias stay in
// registers until the last frame.
template <u32 CHANNELS, typename T>
__device__ inline void backward_in_registers(FrameBlock<T> s, Affine<T> affine, f32* partial) {
    using Registers = FrameRegisters<T, CHANNELS, LANES<CHANNELS>>;
    constexpr u32 N = Registers::N, CHUNKS = Registers::CHUNKS, WARPS = LANES<CHANNELS> / 32,
                  FRAMES = BACKWARD_FRAMES<CHANNELS>;
    // Whether gains stay in registers, and a frame is loaded while its group computes the one before. In f32 both would
    // take twice as many registers, more than there are.
    constexpr bool PREFETCH = sizeof(T) == 2;
    const f32 inverse_columns = 1.f / (f32)s.columns;
    f32 dgain[CHUNKS][N] = {}, dbias[CHUNKS][N] = {};
    Registers gains;
    if constexpr (PREFETCH) gains.load(affine.gain, s.columns);
    auto get_gain = [&](u32 chunk, u32 i, f32 (&gain)[N]) {
        if constexpr (PREFETCH) gains.get(chunk, gain); else load_elements(affine.gain + i, gain);
    };
    FrameInputs<CHANNELS, T> now, next;
    u32 parity = 0, frame = threadIdx.x / LANES<CHANNELS>;
    if (PREFETCH && frame < s.frames) next.load(s, frame);
#pragma unroll 1
    for (; frame < s.frames; frame += FRAMES, parity ^= 1) {
        if constexpr (PREFETCH) now = next; else now.load(s, frame);
        Registers dresiduals = {};
        if (s.has_dresidual) dresiduals.load(s.dresidual + (u64)(s.first + frame) * s.columns, s.columns);
        if (PREFETCH && frame + FRAMES < s.frames) next.load(s, frame + FRAMES);
        const f32 mean = now.saved.x, rstd = now.saved.y;
        f32 x[N], dy[N], gain[N], dnorm_mean = 0.f, dnorm_norm_mean = 0.f;
        Registers::each(s.columns, [&](u32 chunk, u32 i) {
            now.x.get(chunk, x), now.dy.get(chunk, dy), get_gain(chunk, i, gain);
#pragma unroll
            for (u32 n = 0; n < N; n++) {
                f32 norm = (x[n] - mean) * rstd, dnorm = dy[n] * (affine.gain_offset + gain[n]);
                dgain[chunk][n] += dy[n] * norm;
                dbias[chunk][n] += dy[n];
                dnorm_mean += dnorm;
                dnorm_norm_mean += dnorm * norm;
            }
        });
        float2 of_warps[WARPS];
        exchange_across_warps<CHANNELS, FRAMES>(warp_sum(dnorm_mean), warp_sum(dnorm_norm_mean), parity, of_warps);
        dnorm_mean = of_warps[0].x, dnorm_norm_mean = of_warps[0].y;
#pragma unroll
        for (u32 warp = 1; warp < WARPS; warp++) dnorm_mean += of_warps[warp].x, dnorm_norm_mean += of_warps[warp].y;
        dnorm_mean *= inverse_columns, dnorm_norm_mean *= inverse_columns;
        now.x.forget_derived(), now.dy.forget_derived();
        if constexpr (PREFETCH) gains.forget_derived();
        Registers::each(s.columns, [&](u32 chunk, u32 i) {
            f32 dresidual[N];
            now.x.get(chunk, x), now.dy.get(chunk, dy), get_gain(chunk, i, gain);
            dresiduals.get(chunk, dresidual);
            T* dx = s.dx + (u64)(s.first + frame) * s.columns + i;
            store_dx(x, dy, gain, dresidual, affine.gain_offset, mean, rstd, dnorm_mean, dnorm_norm_mean, dx);
        });
    }
    store_partial_sums<CHANNELS, Registers>(dgain, dbias, s.columns, partial);
}

// The same for frames of any size: a warp computes dx of a frame, then a thread sums a column.
template <typename T> __device__ inline void backward_streaming(FrameBlock<T> s, Affine<T> affine, f32* partial) {
    for (u32 i = threadIdx.x / 32; i < s.frames; i += BACKWARD_FRAMES<other>) {
        const u64 frame = s.first + i, at = frame * s.columns;
        f32 mean = s.saved[2 * frame], rstd = s.saved[2 * frame + 1], dnorm_mean = 0.f, dnorm_norm_mean = 0.f;
        each_chunk<1>(s.columns, [&](u32 i) {
            f32 dnorm = (f32)s.dy[at + i] * (affine.gain_offset + (f32)affine.gain[i]);
            dnorm_mean += dnorm;
            dnorm_norm_mean += dnorm * (((f32)s.x[at + i] - mean) * rstd);
        });
        dnorm_mean = warp_sum(dnorm_mean) / (f32)s.columns;
        dnorm_norm_mean = warp_sum(dnorm_norm_mean) / (f32)s.columns;
        each_chunk<1>(s.columns, [&](u32 i) {
            f32 x[1] = {(f32)s.x[at + i]}, dy[1] = {(f32)s.dy[at + i]}, gain[1] = {(f32)affine.gain[i]};
            f32 dresidual[1] = {s.has_dresidual ? (f32)s.dresidual[at + i] : 0.f};
            store_dx(x, dy, gain, dresidual, affine.gain_offset, mean, rstd, dnorm_mean, dnorm_norm_mean, s.dx + at + i);
        });
    }
    for (u32 column = threadIdx.x; column < s.columns; column += BACKWARD_THREADS<other>) {
        f32 dgain = 0.f, dbias = 0.f;
        for (u32 i = 0; i < s.frames; i++) {
            const u64 frame = s.first + i, at = frame * s.columns + column;
            f32 dy = (f32)s.dy[at];
            dgain += dy * (((f32)s.x[at] - s.saved[2 * frame]) * s.saved[2 * frame + 1]);
            dbias += dy;
        }
        partial[column] = dgain;
        partial[s.columns + column] = dbias;
    }
}

template <u32 CHANNELS, typename T>
__device__ inline void frame_block_backward(FrameBlock<T> s, Affine<T> affine, f32* partial) {
    if constexpr (CHANNELS != other) {
        backward_in_registers<CHANNELS>(s, affine, partial);
    } else {
        backward_streaming(s, affine, partial);
    }
}

// Defines the kernels of a norm for every size of frames, in both types.
#define FOR_EVERY_SIZE(KERNELS)                                                                                       \
    KERNELS(256, f32) KERNELS(512, f32) KERNELS(768, f32) KERNELS(1024, f32) KERNELS(other, f32)                      \
    KERNELS(256, bf16) KERNELS(512, bf16) KERNELS(768, bf16) KERNELS(1024, bf16) KERNELS(other, bf16)
