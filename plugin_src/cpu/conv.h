// A causal convolution of each channel with its own taps.
#pragma once

#include "checkpoints.h"
#include "row_tokens.h"

namespace cpu {

// One call of the operator CausalConv1d: y[t] = sum over j of weight[j] column[t - taps + 1 + j] + bias, then SiLU if
// `silu`. The columns before token 0 are the last taps - 1 of state, and new_state has the last taps columns.
// x and y [tokens, channels] of `rows`, tokens of x `stride` numbers apart; weight [channels, taps]; bias [channels] or
// null; state and new_state [rows, channels, taps], which may be the same memory. y is zero where a token does not
// count. checkpoints: states [n, channels, taps] of a single row.
struct Convolution {
    const float *x, *weight, *bias, *state;
    RowTokens tokens;
    float *y, *new_state;
    int64_t rows, channels, taps, stride;
    bool silu;
    Checkpoints checkpoints = {};
};

// The most taps, and the channels that a kernel buffers at once.
constexpr int64_t most_taps = 16, conv_channels = 64;

}  // namespace cpu
