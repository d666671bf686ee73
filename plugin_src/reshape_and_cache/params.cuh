// The argument of the kernels of reshape_and_cache.
#pragma once

#include "common/integers.cuh"

// Strides count elements. A head's numbers are contiguous everywhere.
struct ReshapeAndCache {
    const void* key;          // token t, head h: t * key_token + h * key_head
    const void* value;
    const int* slot_mapping;  // block * block_size + slot of each token, -1 for none
    void* kv_pool;            // keys (0) or values (1) i, block b, slot s, head h:
                              // i * pool_values + b * pool_block + s * pool_slot + h * pool_head
    float* kv_scales;         // of a pool of e4m3: i * scales_values + b * scales_block + h * scales_head + s
    int64_t key_token;
    int64_t key_head;
    int64_t value_token;
    int64_t value_head;
    int64_t pool_values;
    int64_t pool_block;
    int64_t pool_slot;
    int64_t pool_head;
    int64_t scales_values;
    int64_t scales_block;
    int64_t scales_head;
    int tokens;
    int block_size;
    int runs;                 // accesses of a head
    int heads;
    int all_heads;            // of keys and values together; as many as heads where keys are the values
};
