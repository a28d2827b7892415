// Monotonic alignment search (Kim et al. 2020, Glow-TTS): the log-likelihoods of all frames and tokens by many blocks,
// then the best monotonic path of each row by one block (Viterbi: dynamic programming and backtracking).
//
// Scores are in a table [frames of all rows, stride], the tokens of a row adjacent. Backtracking needs one bit per
// frame and token: whether the best path came from the previous token. The bits are in [frames of all rows, words].

// The valid tokens and frames of a row.
struct RowPair {
    u32 text_start, tokens, token_capacity, mel_start, frames;

    __device__ RowPair(const u32* text_starts, const i32* text_lengths, const u32* mel_starts, const i32* mel_lengths,
                    u32 row) {
        Row text(text_starts, row), mel(mel_starts, row);
        text_start = text.start;
        token_capacity = text.frames;
        tokens = clamp_length(text_lengths[row], text.frames);
        mel_start = mel.start;
        frames = clamp_length(mel_lengths[row], mel.frames);
    }

    __device__ bool has_path() const { return tokens > 0 && frames >= tokens; }
};

// A tile of scores is FRAMES x TOKENS, computed DEPTH columns at a time; a thread computes 2 x 4 of them.
constexpr u32 FRAMES = 32, TOKENS = 64, DEPTH = 32, THREADS = 256;

// Stages `count` rows of DEPTH columns from `first` on in shared memory, padded with 0.
template <u32 ROWS, typename T>
__device__ inline void stage(const T* x, u32 count, u32 first, u32 columns, f32 (&to)[ROWS][DEPTH + 1]) {
    for (u32 i = threadIdx.x; i < ROWS * DEPTH; i += THREADS) {
        u32 row = i / DEPTH, column = first + i % DEPTH;
        to[row][i % DEPTH] = row < count && column < columns ? (f32)x[(u64)row * columns + column] : 0.f;
    }
}

// table[frame][token] = y.mu - |mu|^2 / 2, minus the maximum of the frame.
template <typename T>
__device__ inline void score(f32* table, const T* prior, const T* mel, RowPair pair, u32 columns, u32 stride) {
    __shared__ f32 y[FRAMES][DEPTH + 1], mu[TOKENS][DEPTH + 1], norms[TOKENS];
    u32 first = blockIdx.x * FRAMES;
    if (!pair.has_path() || first >= pair.frames) return;
    u32 frames = min_of(FRAMES, pair.frames - first), low = threadIdx.x % 16, high = threadIdx.x / 16;
    table += (u64)(pair.mel_start + first) * stride;
    mel += (u64)(pair.mel_start + first) * columns;
    f32 best[2] = {__int_as_float(0xff800000), __int_as_float(0xff800000)};
    for (u32 token = 0; token < pair.tokens; token += TOKENS) {
        u32 tokens = min_of(TOKENS, pair.tokens - token);
        f32 sums[2][4] = {}, norm = 0.f;
        for (u32 column = 0; column < columns; column += DEPTH) {
            __syncthreads();
            stage(mel, frames, column, columns, y);
            stage(prior + (u64)(pair.text_start + token) * columns, tokens, column, columns, mu);
            __syncthreads();
#pragma unroll 4
            for (u32 k = 0; k < DEPTH; k++) {
                f32 a[2] = {y[high][k], y[high + 16][k]};
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    f32 b = mu[low + 16 * j][k];
                    sums[0][j] += a[0] * b;
                    sums[1][j] += a[1] * b;
                }
            }
            if (threadIdx.x < TOKENS)
                for (u32 k = 0; k < DEPTH; k++) norm += mu[threadIdx.x][k] * mu[threadIdx.x][k];
        }
        if (threadIdx.x < TOKENS) norms[threadIdx.x] = 0.5f * norm;
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < 2; i++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                u32 frame = high + 16 * i, t = low + 16 * j;
                f32 score = sums[i][j] - norms[t];
                if (frame >= frames || t >= tokens) continue;
                table[(u64)frame * stride + token + t] = score;
                if (score > best[i]) best[i] = score;
            }
    }
    // Sixteen adjacent lanes share a frame. Each subtracts the maximum from the scores that it wrote.
    best[0] = warp_max<16>(best[0]);
    best[1] = warp_max<16>(best[1]);
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        u32 frame = high + 16 * i;
        for (u32 t = low; t < pair.tokens && frame < frames; t += 16) table[(u64)frame * stride + t] -= best[i];
    }
}

// Frames that a warp processes before it passes the scores of its last token to the next warp.
constexpr u32 CHUNK = 16;

// The forward pass of Viterbi: scores become those of the best path to each frame and token, for as many tokens from
// `first` on as there are threads. The warps form a pipeline, one chunk apart: the scores of the previous token are
// ready when a warp needs them.
__device__ inline void best_paths(f32* table, u32* bits, u32 first, u32 tokens, u32 frames, u32 stride, u32 words) {
    __shared__ f32 last_scores[2][32][CHUNK];
    const f32 unreachable = __int_as_float(0xff800000);
    u32 warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 token = first + threadIdx.x, chunks = (frames + CHUNK - 1) / CHUNK;
    bool in_row = token < tokens, last = threadIdx.x == blockDim.x - 1;
    // The scores of this token and of the previous one at the previous frame.
    f32 stay = unreachable, left_score = unreachable, next[CHUNK];
    auto load = [&](u32 chunk) {
#pragma unroll
        for (u32 i = 0; i < CHUNK; i++) {
            u32 frame = chunk * CHUNK + i;
            next[i] = in_row && frame < frames ? table[(u64)frame * stride + token] : 0.f;
        }
    };
    load(0);
    for (u32 step = 0; step < chunks + warps - 1; step++) {
        u32 chunk = step - warp;
        if (chunk < chunks) {
            f32 scores[CHUNK];
#pragma unroll
            for (u32 i = 0; i < CHUNK; i++) scores[i] = next[i];
            // In flight while this chunk is processed.
            load(chunk + 1);
            // The score, at frame `lane` of the chunk, of the token before the warp's first: unreachable for the first
            // token, and from the table for the first token of a later block of tokens.
            f32 left = unreachable;
            u32 frame_of_lane = chunk * CHUNK + lane;
            if (warp > 0 && lane < CHUNK) left = last_scores[(step + 1) & 1][warp - 1][lane];
            if (warp == 0 && first > 0 && lane < CHUNK && frame_of_lane < frames) {
                left = table[(u64)frame_of_lane * stride + first - 1];
            }
#pragma unroll
            for (u32 i = 0; i < CHUNK; i++) {
                u32 frame = chunk * CHUNK + i;
                if (frame < frames) {
                    f32 advance = __shfl_up_sync(0xffffffffu, stay, 1);
                    if (lane == 0) advance = left_score;
                    left_score = __shfl_sync(0xffffffffu, left, i);
                    u32 advance_bits = __ballot_sync(0xffffffffu, advance > stay);
                    if (lane == 0 && in_row) bits[(u64)frame * words + token / 32] = advance_bits;
                    f32 best = stay > advance || token == 0 ? stay : advance;
                    stay = frame > 0 ? scores[i] + best : (token == 0 ? scores[i] : unreachable);
                    if (lane == 31) last_scores[step & 1][warp][i] = stay;
                    if (last && in_row) table[(u64)frame * stride + token] = stay;
                }
            }
        }
        __syncthreads();
    }
}

// Backtracking by a warp: counts the frames of each token, from the last frame to the first, 32 frames at a time. In 32
// frames a path moves at most 32 tokens, so two words of bits hold it. A NaN cannot break the path: there are always at
// least as many frames left as tokens.
__device__ inline void backtrack(const u32* bits, i32* durations, u32 tokens, u32 frames, u32 words) {
    u32 lane = threadIdx.x % 32, token = tokens - 1, end = frames;
    for (u32 top = frames; top > 0; top = top > 32 ? top - 32 : 0) {
        u32 word = token / 32;
        u64 window = 0;
        if (lane < top) {
            const u32* here = bits + (u64)(top - 1 - lane) * words + word;
            window = (u64)here[0] << 32 | (word > 0 ? here[-1] : 0);
        }
        u32 position = token % 32 + 32;
#pragma unroll
        for (u32 i = 0; i < 32; i++) {
            u64 advances = __shfl_sync(0xffffffffu, window, i);
            u32 frame = top - 1 - i;
            if (i < top && frame > 0 && token > 0 && (token == frame || (advances >> position & 1))) {
                if (lane == 0) durations[token] = (i32)(end - frame);
                end = frame;
                token--;
                position--;
            }
        }
    }
    if (lane == 0) durations[token] = (i32)end;
}

// Fewer frames than tokens: every token gets one frame or none, spread evenly.
__device__ inline void spread_evenly(i32* durations, u64 tokens, u64 frames) {
    for (u64 token = threadIdx.x; token < tokens; token += blockDim.x)
        durations[token] = (i32)((token + 1) * frames / tokens - token * frames / tokens);
}

#define KERNELS(T)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                           \
        align_scores_##T(f32* table, const T* prior, const T* mel, const u32* text_starts, const i32* text_lengths, \
                         const u32* mel_starts, const i32* mel_lengths, u32 columns, u32 stride) {                  \
        score<T>(table, prior, mel, RowPair(text_starts, text_lengths, mel_starts, mel_lengths, blockIdx.y),        \
                 columns, stride);                                                                                  \
    }

KERNELS(f32)
KERNELS(bf16)

// A block per row, a thread per token (or per 1024th token).
extern "C" __global__ void __launch_bounds__(1024)
    align_path_f32(i32* durations, f32* table, u32* bits, const u32* text_starts, const i32* text_lengths,
                   const u32* mel_starts, const i32* mel_lengths, u32 stride, u32 words) {
    RowPair pair(text_starts, text_lengths, mel_starts, mel_lengths, blockIdx.x);
    durations += pair.text_start;
    for (u32 token = pair.tokens + threadIdx.x; token < pair.token_capacity; token += blockDim.x) durations[token] = 0;
    if (!pair.has_path()) {
        spread_evenly(durations, pair.tokens, pair.frames);
        return;
    }
    table += (u64)pair.mel_start * stride;
    bits += (u64)pair.mel_start * words;
    for (u32 first = 0; first < pair.tokens; first += blockDim.x)
        best_paths(table, bits, first, pair.tokens, pair.frames, stride, words);
    if (threadIdx.x < 32) backtrack(bits, durations, pair.tokens, pair.frames, words);
}
