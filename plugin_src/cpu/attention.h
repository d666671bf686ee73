// Attention of new tokens over caches of keys and values, which it extends.
#pragma once

#include <cstdint>

#include "linear.h"

namespace cpu {

// query [rows, time, heads, size], key and value [rows, time, kv_heads, size]: of the new tokens. cos, sin [rows, time,
// angles] rotate the first 2 * angles numbers of queries and keys, in halves; null without. past_keys, past_values,
// keys and values [rows, kv_heads, capacity, size]: the caches before and after, which may be the same memory. last
// [rows]: the position of each row's last new token. values null: keys are the values too. window: positions that a
// token attends to, itself included; 0: all. y [rows, time, heads, size].
struct Attention {
    const float *query, *key, *value, *cos, *sin, *past_keys, *past_values;
    const int32_t* last;
    float *keys, *values, *y;
    int64_t rows, time, heads, kv_heads, size, capacity, angles, window;
    float scale;

    // Query heads that read the same keys.
    int64_t shared() const { return heads / kv_heads; }
    int64_t start(int64_t row) const { return last[row] + 1 - time; }
    // Keys of a block, whose scores are computed together.
    static constexpr int64_t block = 64;
    // New tokens of a task: with all heads that share keys, about `block` queries, in whole groups of 8.
    int64_t task_time() const {
        const int64_t tokens = shared() < block / 4 ? pad(block / shared(), 8) : 4;
        return time < tokens ? time : tokens;
    }
    int64_t tasks() const { return rows * kv_heads * ((time + task_time() - 1) / task_time()); }
    // Memory of a task: queries, results, scores, largest scores and sums of each query, and a block of keys.
    int64_t task_bytes() const {
        return 4 * pad(task_time() * shared() * (2 * size + block + 2) + block * size, 16);
    }
};

}  // namespace cpu
