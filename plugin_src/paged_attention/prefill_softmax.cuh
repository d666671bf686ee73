// Softmax over keys that come in blocks, for accumulators of 16-row products: s[4 * n + 2 * h + e] is the score of the
// thread's row h (row g + 8 * h, with lane = 4 * g + t) and key 8 * n + 2 * t + e of the block.
#pragma once

#include "common/math.cuh"
#include "paged_attention/params.cuh"

constexpr float LOG2_E = 1.44269504088896340736f;

// The score of a key that is not seen.
__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// What a score is multiplied by before the power of two that replaces its exponential. With the macro SOFTCAP, scores are
// bounded first, and come out of it multiplied by this.
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

struct RunningSoftmax {
    float largest[2];  // score of each row, before the factor
    float sum[2];      // of this thread's keys, relative to the largest

    __device__ __forceinline__ void clear() {
        largest[0] = largest[1] = minus_infinity();
        sum[0] = sum[1] = 0.0f;
    }
    // Scores become weights; `correction` is what everything before them must be multiplied by.
    template <int N>
    __device__ __forceinline__ void weigh(float (&s)[N], float (&correction)[2], float factor) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float most = largest[half];
#pragma unroll
            for (int i = 2 * half; i < N; i += 4) most = fmaxf(most, fmaxf(s[i], s[i + 1]));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            const float reference = most == minus_infinity() ? 0.0f : most * factor;  // nothing seen yet: weights 0, not NaN
            correction[half] = exp2_approx(largest[half] * factor - reference);
            largest[half] = most;
            float total = 0.0f;
#pragma unroll
            for (int i = 2 * half; i < N; i += 4) {
                s[i] = exp2_approx(fmaf(s[i], factor, -reference));
                s[i + 1] = exp2_approx(fmaf(s[i + 1], factor, -reference));
                total += s[i] + s[i + 1];
            }
            sum[half] = sum[half] * correction[half] + total;
        }
    }
    // What a row's weighted values are multiplied by in the end. sink: score of the head's sink; -infinity: none.
    __device__ __forceinline__ float normalizer(int half, float factor, float sink) const {
        float total = sum[half];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        return 1.0f / (total + exp2_approx(sink * LOG2_E - largest[half] * factor));
    }
};
