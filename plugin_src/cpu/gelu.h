// GELU in plain arithmetic, for loops that compilers vectorise. The formulas are those of trt_plugins/activations.py,
// with a small relative error in both tails.
#pragma once

#include "silu.h"

namespace cpu {
namespace {

// relu(x) - |x| Phi(-|x|), with Phi(-a) = t R(t) exp(-a^2 / 2) and t = 1 / (1 + 0.3 a).
inline float gelu(float x) {
    const float a = std::fabs(x), t = 1.0f / (0.3f * a + 1.0f);
    float r = 0.0356748059f;
    r = r * t - 0.15720317f;
    r = r * t + 0.206353587f;
    r = r * t - 0.05368366f;
    r = r * t + 0.128561608f;
    r = r * t + 0.099913505f;
    r = r * t + 0.120753953f;
    r = r * t + 0.119629299f;
    // In two factors: a tail is a normal number where exp(-a^2 / 2) no longer is.
    const float power = exp_of_negative(-0.25f * a * a), below = a * power * t * r * power;
    return (x < 0.0f ? 0.0f : x) - below;
}

// x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). exp(-2 |u|) is the square of one factor for each term.
inline float gelu_tanh(float x) {
    const float a = std::fabs(x);
    constexpr float slope = 0.7978845608f;
    const float half = exp_of_negative(-slope * a) * exp_of_negative(-slope * 0.044715f * a * a * a);
    return (x < 0.0f ? x * half * half : x) / (1.0f + half * half);
}

}  // namespace
}  // namespace cpu
