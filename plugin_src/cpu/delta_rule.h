// The gated delta rule, head by head.
#pragma once

#include "checkpoints.h"
#include "row_tokens.h"

namespace cpu {

// Most numbers of a key: those of a token are kept on the stack.
constexpr int64_t most_key_size = 1024;

// One call of the operator GatedDeltaRule. Per value head: state = exp(g[t]) state; u = beta[t] (v[t] - k[t] state);
// state = state + outer(k[t], u); o[t] = scale q[t] state. With `normed`, q and k are first divided by
// sqrt(sum of squares + 1e-6).
// q and k [tokens, key_heads, key_size]; v and o [tokens, value_heads, value_size]; g
// [tokens, value_heads, decay_size], where decay_size is 1 or key_size; beta [tokens, value_heads], of `rows`; state
// and new_state [rows, value_heads, key_size, value_size], which may be the same memory. o is zero where a token does
// not count. checkpoints: states [n, value_heads, key_size, value_size] of a single row.
struct DeltaRule {
    const float *q, *k, *v, *g, *beta, *state;
    RowTokens tokens;
    float *o, *new_state;
    int64_t rows, key_heads, key_size, value_heads, value_size, decay_size;
    float scale;
    bool normed;
    Checkpoints checkpoints = {};
};

}  // namespace cpu
