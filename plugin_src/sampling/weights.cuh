// Unnormalised probabilities as integers, bit for bit those of hybridge.runtime.sampling.weights, and Philox.
//
// The intrinsics keep the compiler from fusing a product and a sum into one rounding.
#pragma once

#include "sampling/params.cuh"

constexpr int IDLE = 0, BEST = 1, SAMPLED = 2, LISTED = 3;
constexpr int MOST_CANDIDATES = 2048, MOST_LISTED = 64;
constexpr int NOT_FINITE = -1;
// Bins of weights of a wide nucleus, in the order of their size.
constexpr int BINS = 1024;
constexpr unsigned ONE = 0x3f800000u;  // the bits of the largest weight, 1

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000u); }

// exp((score - peak) * scale): 1 at the peak, 0 below 2^-126.5.
__device__ __forceinline__ float exponential(float score, float peak, float scale) {
    float x = fmaxf(__fmul_rn(__fsub_rn(score, peak), scale), -88.1f);
    const float power = rintf(__fmul_rn(x, 1.44269504088896341f));
    x = __fsub_rn(x, __fmul_rn(power, 0.693359375f));
    x = __fsub_rn(x, __fmul_rn(power, -2.12194440e-4f));
    float series = __fadd_rn(__fmul_rn(x, 8.312501e-3f), 4.1890331e-2f);
    series = __fadd_rn(__fmul_rn(series, x), 1.6667116e-1f);
    series = __fadd_rn(__fmul_rn(series, x), 4.9999231e-1f);
    series = __fmul_rn(series, __fmul_rn(x, x));
    x = __fadd_rn(__fadd_rn(x, series), 1.0f);
    return __fmul_rn(x, __int_as_float((static_cast<int>(power) + 127) << 23));
}

// A weight from 0 to 1 as an integer: 1 becomes 2^40.
__device__ __forceinline__ uint64_t whole_weight(float weight) {
    return __float2ull_rn(__fmul_rn(weight, 1099511627776.0f));
}

// The sum over the lanes of a warp, in all of them.
__device__ __forceinline__ uint64_t sum_of_warp(uint64_t value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

// The smallest sum of weights that reaches `top_p` of `total`.
__device__ __forceinline__ uint64_t share_of(uint64_t total, double top_p) {
    const uint64_t share = static_cast<uint64_t>(ceil(__dmul_rn(top_p, __ull2double_rn(total))));
    return min(max(share, uint64_t(1)), total);
}

// A key that orders as the scores do; -0 and +0 have the same key.
__device__ __forceinline__ unsigned ordered(float score) {
    const unsigned bits = __float_as_uint(__fadd_rn(score, 0.0f));
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float score_of(unsigned key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Word 0 of Philox4x64-10 (Salmon et al. 2011) at counter position + 1.
__device__ __forceinline__ uint64_t random_word(const Settings& settings) {
    uint64_t c0 = settings.position + 1, c1 = 0, c2 = 0, c3 = 0, k0 = settings.key_low, k1 = settings.key_high;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t high0 = __umul64hi(c0, 0xD2E7470EE14C6C93ull), low0 = c0 * 0xD2E7470EE14C6C93ull;
        const uint64_t high2 = __umul64hi(c2, 0xCA5A826395121157ull), low2 = c2 * 0xCA5A826395121157ull;
        c0 = high2 ^ c1 ^ k0;
        c1 = low2;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B97F4A7C15ull;
        k1 += 0xBB67AE8584CAA73Bull;
    }
    return c0;
}

// Bins for the weights of one row, the largest first: equal parts of the range of their bits.
struct WeightBins {
    uint64_t factor;

    // Weights below 2^-41 are 0 as integers.
    __device__ __forceinline__ explicit WeightBins(float least)
        : factor((uint64_t(BINS) << 32) / (ONE - max(__float_as_uint(least), ONE - (41u << 23)) + 1)) {}

    __device__ __forceinline__ int of(float weight) const {
        return static_cast<int>(min((ONE - __float_as_uint(weight)) * factor >> 32, uint64_t(BINS - 1)));
    }
    // Weights from `least` to `most` include those of `bin`.
    __device__ __forceinline__ float most(int bin) const {
        return __uint_as_float(ONE - static_cast<unsigned>((uint64_t(bin) << 32) / factor));
    }
    __device__ __forceinline__ float least(int bin) const {
        if (bin == BINS - 1) return 0.0f;
        return __uint_as_float(ONE - min(static_cast<unsigned>((uint64_t(bin + 1) << 32) / factor) + 1, ONE));
    }
};

// Whether the tokens with scores of at least `bound`, of which there are `count` with a sum of `near`, lack some of
// the nucleus of a row without top_k.
__device__ __forceinline__ bool is_wide(const Settings& settings, int count, uint64_t near, uint64_t total) {
    if (settings.kind != SAMPLED || settings.top_k > 0 || settings.top_p >= 1.0) return false;
    return count > MOST_CANDIDATES || near < share_of(total, settings.top_p);
}

// The scores of a row: its logits, after its edits if it has any.
__device__ __forceinline__ const float* scores_of(const Sampling& params, const Settings& settings) {
    const bool edited = settings.masked || settings.edits_begin < settings.edits_end;
    return (edited ? params.scores : params.logits) + static_cast<int64_t>(settings.row) * params.vocab;
}

// Whether the filters of a row depend on the order of the scores.
__device__ __forceinline__ bool has_order(const Settings& settings) {
    return settings.kind == LISTED || (settings.kind == SAMPLED && (settings.top_k > 0 || settings.top_p < 1.0));
}
