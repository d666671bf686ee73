// Softmax over keys that come in blocks, for accumulators of 16-row products: s[4 * n + 2 * h + e] is the score of the
// thread's row h (row g + 8 * h, with lane = 4 * g + t) and key 8 * n + 2 * t + e of the block.
#pragma once

#include "common/math.cuh"
#include "paged_attention/params.cuh"

constexpr float LOG2_E = 1.44269504088896340736f;

// The score of a key that is not seen.
__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// What a score is multiplied by before the power of two that replaces its exponential. With the macro SOFTCAP, scores
// are bounded first, and come out of it multiplied by this.
__device__ __forceinline__ float score_factor(const PagedAttention& p) {
    return SOFTCAP ? 1.0f : p.scale * LOG2_E;
}

// softcap * tanh(scale * score / softcap) * log2(e). tanh(x) = 1 - 2 / (exp(2x) + 1), whose absolute error is one
// rounding of 1; EXACT: with the error of tanhf.
template <bool EXACT, int N>
__device__ __forceinline__ void bound_scores(float (&s)[N], const PagedAttention& p) {
    const float inner = p.scale / p.softcap, outer = p.softcap * LOG2_E;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if constexpr (EXACT) {
            s[i] = outer * tanhf(inner * s[i]);
        } else {
            s[i] = outer - __fdividef(2.0f * outer, exp2_approx(2.0f * LOG2_E * inner * s[i]) + 1.0f);
        }
    }
}

// How many positions a token sees: all up to its own, or the last of them.
__device__ __forceinline__ unsigned visible_span(const PagedAttention& p) {
    return p.sliding_window > 0 ? p.sliding_window : 1u << 31;
}

// Hides keys that a row does not see. rows: positions of the thread's two tokens. key: position of the block's first.
template <int N>
__device__ __forceinline__ void hide_scores(float (&s)[N], const int (&rows)[2], int key, unsigned span) {
    const int first = key + threadIdx.x % 4 * 2;
    const int distance[2] = {rows[0] - first, rows[1] - first};
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const unsigned back = distance[i / 2 % 2] - (i / 4 * 8 + i % 2);  // from the token to the key
        s[i] = back < span ? s[i] : minus_infinity();
    }
}

// How far the score of a row may pass its reference, in powers of two, before the reference follows (FlashAttention-4).
// Weights are at most 2^LAG, which changes no relative error, and what was summed up before is seldom corrected.
constexpr float LAG = 8.0f;

struct RunningSoftmax {
    float reference[2];  // score that has weight 1 in each row, before the factor; -infinity: no score yet
    float sum[2];        // weights of this thread's keys

    __device__ __forceinline__ void clear() {
        reference[0] = reference[1] = minus_infinity();
        sum[0] = sum[1] = 0.0f;
    }
    // Whether a row of the warp has a new reference for these scores; then `correction` is what the outputs so far must
    // be multiplied by. A row's reference depends on its own scores alone. Called by whole warps.
    template <int N>
    __device__ __forceinline__ bool follow(const float (&s)[N], float (&correction)[2], float factor) {
        float most[2];
        find_most(s, most);
        if (!__any_sync(~0u, passes(most, factor))) return false;
        follow_most(most, correction, factor);
        return true;
    }
    // Its parts, for warps that ask once for all their rows. The thread's largest score in each row;
    template <int N>
    __device__ __forceinline__ void find_most(const float (&s)[N], float (&most)[2]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            most[half] = fmaxf(s[2 * half], s[2 * half + 1]);
#pragma unroll
            for (int i = 2 * half + 4; i < N; i += 4) most[half] = fmaxf(most[half], fmaxf(s[i], s[i + 1]));
        }
    }
    // whether one of them asks for a new reference;
    __device__ __forceinline__ bool passes(const float (&most)[2], float factor) const {
        return passes(most[0], 0, factor) || passes(most[1], 1, factor);
    }
    // new references, where rows need them.
    __device__ __forceinline__ void follow_most(float (&most)[2], float (&correction)[2], float factor) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            most[half] = fmaxf(most[half], __shfl_xor_sync(~0u, most[half], 1));
            most[half] = fmaxf(most[half], __shfl_xor_sync(~0u, most[half], 2));
            const float before = reference[half];
            const bool follows = passes(most[half], half, factor);
            if (follows) reference[half] = most[half];
            correction[half] = follows ? exp2_approx(before * factor - shift(half, factor)) : 1.0f;
            sum[half] *= correction[half];
        }
    }
    // Scores become weights.
    template <int N>
    __device__ __forceinline__ void weigh(float (&s)[N], float factor) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float subtracted = shift(half, factor);
#pragma unroll
            for (int i = 2 * half; i < N; i += 4) {
                s[i] = exp2_approx(fmaf(s[i], factor, -subtracted));
                s[i + 1] = exp2_approx(fmaf(s[i + 1], factor, -subtracted));
                sum[half] += s[i] + s[i + 1];
            }
        }
    }
    // Takes in the reference and the sum of the same row over other keys. What was summed up here and there is
    // multiplied by `own` and `other`.
    __device__ __forceinline__ void join(int half, float other_reference, float other_sum, float factor, float& own,
                                         float& other) {
        const float before = reference[half];
        reference[half] = fmaxf(before, other_reference);
        const float subtracted = shift(half, factor);
        own = exp2_approx(before * factor - subtracted);
        other = exp2_approx(other_reference * factor - subtracted);
        sum[half] = sum[half] * own + other_sum * other;
    }
    // What a row's weighted values are multiplied by in the end. sink: score of the head's sink; -infinity: none.
    __device__ __forceinline__ float normalizer(int half, float factor, float sink) const {
        float total = sum[half];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        return 1.0f / (total + exp2_approx(sink * LOG2_E - reference[half] * factor));
    }

private:
    // Of two infinities: no.
    __device__ __forceinline__ bool passes(float score, int half, float factor) const {
        return (score - reference[half]) * factor > LAG;
    }
    // What is subtracted from scores times the factor. Nothing seen yet: 0, so that weights are 0 and not NaN.
    __device__ __forceinline__ float shift(int half, float factor) const {
        return reference[half] == minus_infinity() ? 0.0f : reference[half] * factor;
    }
};
