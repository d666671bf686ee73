// Unnormalised probabilities as integers, bit for bit those of hybridge.runtime.sampling.weights, and Philox.
//
// The intrinsics keep the compiler from fusing a product and a sum into one rounding.
#pragma once

#include "sampling/params.cuh"

constexpr int IDLE = 0, BEST = 1, SAMPLED = 2, LISTED = 3;
constexpr int MOST_CANDIDATES = 2048, MOST_GATHERED = 8192, MOST_LISTED = 64;
constexpr int NOT_FINITE = -1;
// Each warp works on one part of a slice.
constexpr int PARTS = 8, MOST_PARTS = 256, MOST_PART = 2048;
constexpr int BINS = 4096;
constexpr unsigned ONE = 0x3f800000u;  // the bits of the largest weight, 1

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000u); }

// (score - peak) * scale: 0 at the peak.
__device__ __forceinline__ float power_of(float score, float peak, float scale) {
    return __fmul_rn(__fsub_rn(score, peak), scale);
}

// exp(power), for a power of at most 0; 0 below 2^-126.5.
__device__ __forceinline__ float exponential(float power) {
    float x = fmaxf(power, -88.1f);
    // Adding 1.5 * 2^23 rounds to an integer, which is in the low bits of the sum.
    const float shifted = __fadd_rn(__fmul_rn(x, 1.44269504088896341f), 12582912.0f);
    const float whole = __fsub_rn(shifted, 12582912.0f);
    x = __fsub_rn(x, __fmul_rn(whole, 0.693359375f));
    x = __fsub_rn(x, __fmul_rn(whole, -2.12194440e-4f));
    float series = __fadd_rn(__fmul_rn(x, 8.312501e-3f), 4.1890331e-2f);
    series = __fadd_rn(__fmul_rn(series, x), 1.6667116e-1f);
    series = __fadd_rn(__fmul_rn(series, x), 4.9999231e-1f);
    series = __fmul_rn(series, __fmul_rn(x, x));
    x = __fadd_rn(__fadd_rn(x, series), 1.0f);
    return __fmul_rn(x, __uint_as_float((__float_as_uint(shifted) << 23) + ONE));
}
__device__ __forceinline__ float exponential(float score, float peak, float scale) {
    return exponential(power_of(score, peak, scale));
}

// A weight from 0 to 1 as an integer: 1 becomes 2^40.
__device__ __forceinline__ uint64_t whole_weight(float weight) {
    return __float2ull_rn(__fmul_rn(weight, 1099511627776.0f));
}

// A weight as an integer in two parts, high * 2^20 + low, computed without conversion instructions, which have a low
// throughput.
struct WholeParts {
    unsigned high;
    int low;

    __device__ __forceinline__ explicit WholeParts(float weight) {
        const float scaled = __fmul_rn(weight, 1048576.0f), shifted = __fadd_rn(scaled, 8388608.0f);
        const float rest = __fsub_rn(scaled, __fsub_rn(shifted, 8388608.0f));
        high = __float_as_uint(shifted) - 0x4b000000u;
        low = __float_as_int(__fmaf_rn(rest, 1048576.0f, 12582912.0f)) - 0x4b400000;
    }
};

// The sum of at most 2^11 weights.
struct WholeSum {
    unsigned high = 0;
    int low = 0;

    __device__ __forceinline__ void add(const WholeParts& parts) {
        high += parts.high;
        low += parts.low;
    }
    __device__ __forceinline__ uint64_t value() const {
        return (static_cast<uint64_t>(high) << 20) + static_cast<int64_t>(low);
    }
};

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

// Bins of equal width for the powers of one row's weights, the largest first.
struct PowerBins {
    // Weights of smaller powers are 0 as integers.
    static constexpr float LEAST = -28.5f;

    float width, per_power;

    __device__ __forceinline__ explicit PowerBins(float width) : width(width), per_power(1.0f / width) {}
    // Bins down to the power `lowest`. They are much wider than the error of `exponential`.
    __device__ __forceinline__ static float width_for(float lowest) {
        return fmaxf(-fmaxf(lowest, LEAST) / (BINS - 1), 1e-4f);
    }
    // START plus the bin, which is in the low bits. The last bin also has all smaller powers.
    static constexpr float START = 8388608.0f;
    __device__ __forceinline__ float shifted(float power) const {
        return __fadd_rn(__fmul_rn(-power, per_power), START);
    }
    __device__ __forceinline__ int of(float power) const {
        return min(__float_as_int(shifted(power)) - __float_as_int(START), BINS - 1);
    }
    // Weights of the bin are at most this, up to a rounding error, and at least that of the next bin.
    __device__ __forceinline__ float most(int bin) const { return expf(-width * fmaxf(bin - 0.5f, 0.0f)); }
};

// Whether the filter of a row is top_p alone, with or without min_p.
__device__ __forceinline__ bool has_bins(const Settings& settings) {
    return settings.kind == SAMPLED && settings.top_k == 0 && settings.top_p < 1.0;
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
