// The activation between an expert's two products. Macro: ACTIVATION, its index in EXPERT_ACTIVATIONS of the specification.
#pragma once

#include "common/math.cuh"

__device__ __forceinline__ float activate(float x) {
    if (ACTIVATION == 0) return silu(x);
    if (ACTIVATION == 1) return gelu(x);
    if (ACTIVATION == 2) return gelu_tanh(x);
    const float positive = fmaxf(x, 0.0f);
    return ACTIVATION == 3 ? positive : positive * positive;
}
