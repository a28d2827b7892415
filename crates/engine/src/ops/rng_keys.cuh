// Counter-based random numbers, Philox 4x32-10 (Salmon et al. 2011), as in rng_keys.rs: a word is a function of seed, step,
// utterance, op and element.

struct Words {
    u32 at[4];
};

// Philox 4x32-10: ten rounds, with the Weyl sequences of the paper as key schedule.
__device__ inline Words philox(u32 key_a, u32 key_b, Words counter) {
    u32 a = counter.at[0], b = counter.at[1], c = counter.at[2], d = counter.at[3];
#pragma unroll
    for (u32 round = 0; round < 10; round++) {
        u32 p_high = __umulhi(0xD2511F53u, a), p = 0xD2511F53u * a;
        u32 q_high = __umulhi(0xCD9E8D57u, c), q = 0xCD9E8D57u * c;
        a = q_high ^ b ^ key_a;
        b = q;
        c = p_high ^ d ^ key_b;
        d = p;
        key_a += 0x9E3779B9u;
        key_b += 0xBB67AE85u;
    }
    return {{a, b, c, d}};
}

// The random numbers of one row in one op; `draw` is the number of the op.
struct RowRng {
    u32 key_a, key_b, utterance, draw, step;

    __device__ RowRng(const u32* seed, const u32* step, const u32* utterances, u32 draw, u32 row)
        : key_a(seed[0]), key_b(seed[1]), utterance(utterances[row]), draw(draw), step(step[0]) {}

    // The words of elements 4 i to 4 i + 3 of the row.
    __device__ Words words(u32 i) const { return philox(key_a, key_b, {{i, utterance, draw, step}}); }
};

// A uniform number in the open interval (0, 1).
__device__ inline f32 unit(u32 word) { return ((f32)(word >> 9) + 0.5f) * (1.f / 8388608.f); }

// Calls whole(element) for vectors of N elements of a row, and part(element, count) at the end of the row, or throughout if
// the row is not aligned to 16 bytes: with odd columns a row begins anywhere.
template <u32 N, typename F, typename G>
__device__ inline void each_vector(u64 elements, bool aligned, F whole, G part) {
    for (u64 at = thread_index() * N; at < elements; at += thread_count() * N) {
        if (aligned && at + N <= elements) {
            whole(at);
        } else {
            part(at, (u32)min_of((u64)N, elements - at));
        }
    }
}
