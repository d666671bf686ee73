// The norm for one instruction set: the compiler vectorises its loops over the numbers of a group.
#pragma once

#include <cmath>

#include "gated_norm.h"
#include "silu.h"

namespace cpu {
namespace {

// Independent sums, which the compiler may add as vectors.
constexpr int64_t norm_sums = 32;

template <class Isa>
void gated_norm(const GatedNorm& n, int64_t first, int64_t last) {
    for (int64_t group = first; group < last; ++group) {
        const float *x = n.x + group * n.size, *gate = n.gate + group * n.size;
        const float* weight = n.weight + group % n.weight_groups * n.size;
        float* y = n.y + group * n.size;
        if (n.norm_first) {
            for (int64_t i = 0; i < n.size; ++i) y[i] = x[i];
        } else {
            for (int64_t i = 0; i < n.size; ++i) y[i] = x[i] * silu(gate[i]);
        }
        float sums[norm_sums] = {};
        int64_t i = 0;
        for (; i + norm_sums <= n.size; i += norm_sums) {
            for (int64_t k = 0; k < norm_sums; ++k) sums[k] += y[i + k] * y[i + k];
        }
        for (; i < n.size; ++i) sums[i % norm_sums] += y[i] * y[i];
        double square = 0;
        for (float sum : sums) square += sum;
        const float scale = static_cast<float>(1.0 / std::sqrt(square / static_cast<double>(n.size) + n.epsilon));
        if (n.norm_first) {
            for (i = 0; i < n.size; ++i) y[i] *= scale * weight[i] * silu(gate[i]);
        } else {
            for (i = 0; i < n.size; ++i) y[i] *= scale * weight[i];
        }
    }
}

}  // namespace
}  // namespace cpu
