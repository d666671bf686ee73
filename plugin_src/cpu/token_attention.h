// Attention of one new token of each row over keys and values in the blocks of a pool, which it extends.
#pragma once

#include <cstdint>

#include "linear.h"

namespace cpu {

// q and y [rows, heads, head_dim]; key and value [rows, kv_heads, head_dim]. pool [parts, blocks, kv_heads, block_size,
// head_dim]: keys, then values, or one part that is both; then value is null. slots [rows]: block * block_size + offset
// of each new token, negative: it is not stored. table [rows, columns]: the block of positions i * block_size and on.
// lengths [rows]: tokens of each row, the new one included; 0: its y is zero. sinks [heads]: scores of a key without
// value, or null. A token sees the last `window` keys up to its own, 0: all. softcap: 0 for none.
struct TokenAttention {
    const float *q, *key, *value, *sinks;
    const int32_t *slots, *table, *lengths;
    float *pool, *y;
    int64_t rows, heads, kv_heads, head_dim, parts, blocks, block_size, columns, window;
    float scale, softcap;

    // Query heads that read the same keys.
    int64_t shared() const { return heads / kv_heads; }
    int64_t first(int64_t row) const { return window && lengths[row] > window ? lengths[row] - window : 0; }
    // Keys and values of one head in a block.
    float* head(int64_t part, int64_t block, int64_t kv_head) const {
        return pool + ((part * blocks + block) * kv_heads + kv_head) * block_size * head_dim;
    }
    // Memory of a task: the scores of each query.
    int64_t task_bytes(int64_t row) const { return 4 * shared() * pad(lengths[row] - first(row), 16); }
};

}  // namespace cpu
