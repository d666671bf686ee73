// The argument of the chunked kernels of update_ssm_state, and two macros of all of them. CHUNK_TOKENS: 64, or 32 where
// tiles of 64 tokens do not fit in shared memory. GATE_ACCESS: elements of one access to the gate; 0 without one.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/rows.cuh"

// Tokens that are handled as one set of matrices.
constexpr int CHUNK = CHUNK_TOKENS;

struct PrefillParams {
    Rows rows;
    const void* x;          // [row][token][heads][head_dim], the last two axes contiguous; so B and C
    const float* A;         // [heads]
    const void* B;          // [row][token][groups][state_size]
    const void* C;          // [row][token][groups][state_size]
    const void* D;          // [heads]
    const void* dt;         // [row][token][heads]
    const void* dt_bias;    // [heads]
    const void* state;      // [slot][heads][head_dim][state_size]
    void* y;                // like x
    void* state_out;        // like state; may be the same memory
    float* scratch;         // states that enter the segments, and their decays; null for one segment
    int64_t x_row;          // strides in elements
    int64_t x_token;
    int64_t B_row;
    int64_t B_token;
    int64_t C_row;
    int64_t C_token;
    int64_t dt_row;
    int64_t dt_token;
    int64_t y_row;
    int64_t y_token;
    int64_t state_slot;
    int64_t state_out_slot;
    int heads;
    int groups;
    int segments;           // equal parts of a row's chunks that are computed at the same time
    int dt_softplus;
    float dt_min;
    float dt_max;
    const void* gate;       // y is multiplied by silu of it; [row][token][heads * head_dim]
    int64_t gate_row;
    int64_t gate_token;
};
