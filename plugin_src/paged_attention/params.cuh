// What the kernels of paged_attention share: the tensors of a call, and which rows belong to which kernel.
#pragma once

#include "common/integers.cuh"

// Strides count elements; head_dim is contiguous everywhere. Rows are packed: row r has the tokens query_start_loc[r]
// to query_start_loc[r + 1] - 1, of which the last has position seq_lens[r] - 1. Position p of row r lies in block
// block_table[r * table_row + p / block_size] at slot p % block_size. Rows of seq_lens 0 are padding.
// Rows of one token are those of the decode kernel, rows of more those of the prefill kernel.
struct PagedAttention {
    const void* query;          // token t, head h: t * query_token + h * query_head
    const void* kv_pool;        // keys (0) or values (1) i, block b, slot s, KV head h:
                                // i * pool_values + b * pool_block + s * pool_slot + h * pool_head
    const float* kv_scales;     // of pools of e4m3, of keys (0) or values (1) i, block b, KV head h, slot s:
                                // i * scales_values + b * scales_block + h * scales_head + s
    const int* block_table;     // -1 where no token of the row sees the block
    const int* query_start_loc;
    const int* seq_lens;
    const float* sinks;         // [heads] or null
    void* y;                    // token t, head h: t * y_token + h * y_head
    int64_t query_token;
    int64_t query_head;
    int64_t pool_values;
    int64_t pool_block;
    int64_t pool_slot;
    int64_t pool_head;
    int64_t scales_values;
    int64_t scales_block;
    int64_t scales_head;
    int64_t table_row;
    int64_t y_token;
    int64_t y_head;
    int rows;
    int heads;
    int kv_heads;
    int group;                  // query heads of a KV head
    int max_blocks;             // columns of block_table
    int block_size;             // a multiple of 16
    int sliding_window;         // 0: all positions
    float scale;                // of the scores, before the softcap; never 0
    float softcap;              // 0: none
};
