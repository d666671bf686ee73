// x sigmoid(x) in plain arithmetic, so that compilers vectorise loops that call it, for the instruction set of the
// including file.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace cpu {
namespace {

// exp(x) for x <= 0 by the polynomial of the Cephes library's expf: a relative error of about 1e-7. 0 below -87.
inline float exp_of_negative(float x) {
    // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits.
    constexpr float rounder = 12582912.0f, log2e = 1.44269504088896341f;
    const float whole = x * log2e + rounder, n = whole - rounder;
    int32_t bits;
    std::memcpy(&bits, &whole, sizeof bits);
    // ln(2) in two parts, so that the difference is exact.
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t power;
    std::memcpy(&power, &p, sizeof power);
    power += static_cast<int32_t>(static_cast<uint32_t>(bits) << 23);
    float result;
    std::memcpy(&result, &power, sizeof result);
    return x < -87.0f ? 0.0f : result;
}

// Accurate in both tails, and NaN for NaN.
inline float silu(float x) {
    // x exp(x) is a normal number where exp(x) no longer is.
    const float half = exp_of_negative(-0.5f * std::fabs(x)), numerator = x < 0.0f ? x * half * half : x;
    return numerator / (1.0f + half * half);
}

}  // namespace
}  // namespace cpu
