// What is between an expert's two products. Macro: ACTIVATION, its index in EXPERT_ACTIVATIONS of the specification.
#pragma once

#include "common/math.cuh"
#include "routed_experts/params.cuh"

__device__ __forceinline__ float activate(const ExpertActivation& form, float x) {
    if (ACTIVATION == 0) return x * sigmoid(form.alpha * x);
    if (ACTIVATION == 1) return gelu(x);
    if (ACTIVATION == 2) return gelu_tanh(x);
    const float positive = fmaxf(x, 0.0f);
    return ACTIVATION == 3 ? positive : positive * positive;
}

// The activation of `gate` times `up`; comparisons, unlike fminf, keep NaN.
__device__ __forceinline__ float activate_gated(const ExpertActivation& form, float gate, float up) {
    gate = gate > form.limit ? form.limit : gate;
    up = up > form.limit ? form.limit : up < -form.limit ? -form.limit : up;
    return activate(form, gate) * (up + form.offset);
}
