// The RMS norm of one row for one instruction set: the compiler vectorises its loops.
#pragma once

#include <cmath>
#include <cstdint>

namespace cpu {
namespace {

// The sum of the squares of x [count]; independent sums, which the compiler may add as vectors.
inline double sum_of_squares(const float* x, int64_t count) {
    constexpr int64_t parts = 32;
    float sums[parts] = {};
    int64_t i = 0;
    for (; i + parts <= count; i += parts) {
        for (int64_t k = 0; k < parts; ++k) sums[k] += x[i + k] * x[i + k];
    }
    for (; i < count; ++i) sums[i % parts] += x[i] * x[i];
    double square = 0;
    for (float sum : sums) square += sum;
    return square;
}

// x / sqrt(mean(x^2) + epsilon) * weight, all [count].
template <class Isa>
void rms_norm(const float* x, const float* weight, int64_t count, float epsilon, float* out) {
    const double mean = sum_of_squares(x, count) / static_cast<double>(count);
    const float scale = static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(epsilon)));
    for (int64_t i = 0; i < count; ++i) out[i] = x[i] * scale * weight[i];
}

}  // namespace
}  // namespace cpu
