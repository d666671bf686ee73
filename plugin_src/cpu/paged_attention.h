// Attention of one row's new tokens over keys and values in the blocks of a pool.
#pragma once

#include <cstdint>

namespace cpu {

// q and y [tokens, heads, head_dim]. pool [parts, pool_rows, block_size, head_dim]: keys, then values, or one part that
// is both; a pool row is a block of one head. blocks [kv_heads, row_blocks]: pool rows of the keys that the row sees,
// of which `seen` are filled, the new tokens last. sinks [heads]: scores of a key without value, or null. A token sees
// the last `window` keys up to its own, 0: all. softcap: 0 for none.
struct PagedAttention {
    const float *q, *pool;
    const int64_t* blocks;
    const float* sinks;
    float* y;
    int64_t tokens, heads, kv_heads, head_dim, block_size, parts, pool_rows, row_blocks, seen, window;
    float scale, softcap;

    int64_t queries() const { return tokens * (heads / kv_heads); }
};

}  // namespace cpu
