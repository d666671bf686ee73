// RMS norms of groups, with a SiLU gate.
#pragma once

#include <cstdint>

namespace cpu {

// One call of the operator GatedNorm on groups of `size` numbers: y = norm(x silu(gate)) weight, or with `norm_first`
// norm(x) weight silu(gate), where norm(v) = v / sqrt(mean(v^2) + epsilon).
// x, gate and y [tokens, groups, size], tokens of gate `stride` numbers apart; weight [weight_groups, size]: one for
// each group, or one for all.
struct GatedNorm {
    const float *x, *gate, *weight;
    float* y;
    int64_t groups, size, weight_groups, stride;
    float epsilon;
    bool norm_first;
};

}  // namespace cpu
