// The argument of linear_decode.
#pragma once

#include "common/integers.cuh"

// y[r][n] = epilogue(sum over k of weight[n][k] * x[r][k]). Strides count elements, those of x and the weights are
// multiples of 8; their addresses are multiples of 16 bytes.
struct LinearDecode {
    const void* x;            // [rows][inputs]
    const void* weight;       // [outputs][inputs], or tiles (tile.cuh); in the gated form the gate's
    const void* up_weight;    // as weight; the gated form only
    const float* factors;     // [outputs] or null: of the rows of weight
    const float* up_factors;  // of up_weight
    const void* bias;         // [outputs] or null
    const void* residual;     // [rows][outputs] or null; may be the memory of y
    const void* norm_weight;  // [inputs]: x is first normalised by its root mean square and multiplied by this
    void* y;                  // [rows][outputs]
    int64_t x_stride;
    int64_t weight_stride;    // of both weights
    int64_t residual_stride;
    int64_t y_stride;
    int rows;
    int inputs;
    int outputs;
    float epsilon;            // added to the mean square
};
