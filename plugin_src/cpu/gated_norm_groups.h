// The norm for one instruction set: the compiler vectorises its loops over the numbers of a group.
#pragma once

#include <cmath>

#include "gated_norm.h"
#include "rms_norm.h"
#include "silu.h"

namespace cpu {
namespace {

template <class Isa>
void gated_norm(const GatedNorm& n, int64_t first, int64_t last) {
    for (int64_t group = first; group < last; ++group) {
        const float *x = n.x + group * n.size, *gate = n.gate + group / n.groups * n.stride + group % n.groups * n.size;
        const float* weight = n.weight + group % n.weight_groups * n.size;
        float* y = n.y + group * n.size;
        if (n.norm_first) {
            for (int64_t i = 0; i < n.size; ++i) y[i] = x[i];
        } else {
            for (int64_t i = 0; i < n.size; ++i) y[i] = x[i] * silu(gate[i]);
        }
        const double square = sum_of_squares(y, n.size);
        const float scale = static_cast<float>(1.0 / std::sqrt(square / static_cast<double>(n.size) + n.epsilon));
        if (n.norm_first) {
            for (int64_t i = 0; i < n.size; ++i) y[i] *= scale * weight[i] * silu(gate[i]);
        } else {
            for (int64_t i = 0; i < n.size; ++i) y[i] *= scale * weight[i];
        }
    }
}

}  // namespace
}  // namespace cpu
