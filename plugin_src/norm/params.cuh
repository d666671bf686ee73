// The argument of rms_norm.
#pragma once

#include "common/integers.cuh"

// y = v / sqrt(mean(v^2) + epsilon) * weight, with the mean over `group` neighbouring columns of a row, where v is x,
// x + residual, or x * silu(gate); or the result times silu(gate). Strides count elements.
struct RmsNorm {
    const void* x;         // [rows][columns]
    const void* residual;  // as x, or null
    const void* gate;      // as x, or null
    const void* weight;    // [columns], constant; its type may differ
    void* y;               // as x
    void* sum;             // x + residual as x's type; may be the memory of x or of residual
    int64_t x_stride;
    int64_t residual_stride;
    int64_t gate_stride;
    int64_t y_stride;
    int64_t sum_stride;
    int rows;
    int columns;
    int group;
    float epsilon;
};
