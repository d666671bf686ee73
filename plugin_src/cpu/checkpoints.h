// States of a row after other tokens than its last.
#pragma once

#include <cstdint>

namespace cpu {

// `count` states of the same shape, one after another: number n after the first `lengths[n]` tokens. These numbers
// ascend, from 1 to the row's tokens.
struct Checkpoints {
    const int32_t* lengths = nullptr;
    float* states = nullptr;
    int64_t count = 0;

    // Whether state `next` is the one after `tokens` tokens.
    bool is_after(int64_t next, int64_t tokens) const { return next < count && lengths[next] == tokens; }
    // Tokens from `token` on until state `next`; without one more than any row has.
    int64_t tokens_until(int64_t next, int64_t token) const { return next < count ? lengths[next] - token : INT64_MAX; }
};

}  // namespace cpu
