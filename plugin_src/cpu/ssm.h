// Mamba2's state update, head by head.
#pragma once

#include "checkpoints.h"
#include "row_tokens.h"

namespace cpu {

// One call of the operator UpdateSsmState: per head, with d[t] = clamp(softplus(dt[t] + dt_bias)):
// state = exp(A d[t]) state + outer(B[t], d[t] x[t]); y[t] = C[t] state + D x[t].
// x and y [tokens, heads, head_dim]; B and C [tokens, groups, state_size]; dt [tokens, heads], of `rows`, tokens of x,
// B and C, and dt `x_stride`, `b_stride` and `dt_stride` numbers apart; A, D and dt_bias [heads]; state and new_state
// [rows, heads, state_size, head_dim], which may be the same memory; new_state may be null. y is zero where a token
// does not count. checkpoints: states [n, heads, state_size, head_dim] of a single row.
struct SsmUpdate {
    const float *x, *A, *B, *C, *D, *dt, *dt_bias, *state;
    RowTokens tokens;
    float *y, *new_state;
    int64_t rows, heads, head_dim, groups, state_size;
    bool softplus;
    float lowest, highest;
    int64_t x_stride, b_stride, dt_stride;
    Checkpoints checkpoints = {};
};

// The state of an update in 8 bits, in the place of `state` and `new_state`: numbers like these, and scales
// [rows, heads, head_dim] of the numbers of a column. New ones may be in the same memory.
struct SsmState8 {
    const int8_t* values;
    const float* scales;
    int8_t* new_values;
    float* new_scales;
};

}  // namespace cpu
