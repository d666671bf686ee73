// What is computed between the two products of a routed expert.
#pragma once

#include <cstdint>

namespace cpu {

enum Activation : int64_t { silu_activation = 0, relu_activation = 1, relu2_activation = 2 };

// u [up_rows] of a token to a [size]: activation(u), or where gated, of g over v: activation(min(g, limit)) *
// (clip(v, -limit, limit) + offset). silu(z) is z sigmoid(alpha z).
struct Activate {
    Activation kind;
    bool gated;
    float alpha, limit, offset;
    int64_t size;
};

}  // namespace cpu
