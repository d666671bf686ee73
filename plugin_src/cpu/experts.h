// What is computed between the two products of an expert or of a layer.
#pragma once

#include <cstdint>

namespace cpu {

enum Activation : int64_t { silu_activation, relu_activation, relu2_activation, gelu_activation, gelu_tanh_activation };

// u [up_rows] of a token to a [size]: activation(u), or where gated, of g over v: activation(min(g, limit)) *
// (clip(v, -limit, limit) + offset). silu(z) is z sigmoid(alpha z).
struct Activate {
    Activation kind;
    bool gated;
    float alpha, limit, offset;
    int64_t size;
};

}  // namespace cpu
