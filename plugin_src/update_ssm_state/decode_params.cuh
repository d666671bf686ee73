// The argument of the one-token kernels of update_ssm_state.
#pragma once

#include "common/rows.cuh"

// Strides count elements. head_dim and state_size are contiguous everywhere, and a slot of the states is [heads]
// [HEAD_DIM][STATE_SIZE] without gaps. state and state_out may be the same memory.
struct SsmDecode {
    Rows rows;
    const void* x;          // row r, token t, head h: r * x_row + t * x_token + h * x_head
    const float* A;         // [heads]
    const void* B;          // row r, token t, group g: r * B_row + t * B_token + g * B_group
    const void* C;
    const void* D;          // [heads]
    const void* dt;         // row r, token t, head h: r * dt_row + t * dt_token + h
    const void* dt_bias;    // [heads]
    const void* state;      // slot s: s * state_slot
    const void* gate;       // where y is gated: row r, token t, head h: r * gate_row + t * gate_token + h * HEAD_DIM
    void* y;                // as x
    void* state_out;        // as state
    const float* scale;     // states of 8 bits: factor of row p of head h in slot s: s * scale_slot + h * HEAD_DIM + p
    float* scale_out;       // as scale
    int64_t x_row;
    int64_t x_token;
    int64_t x_head;
    int64_t B_row;
    int64_t B_token;
    int64_t B_group;
    int64_t C_row;
    int64_t C_token;
    int64_t C_group;
    int64_t dt_row;
    int64_t dt_token;
    int64_t gate_row;
    int64_t gate_token;
    int64_t y_row;
    int64_t y_token;
    int64_t y_head;
    int64_t state_slot;
    int64_t state_out_slot;
    int64_t scale_slot;
    int64_t scale_out_slot;
    int heads_per_group;
    int prefetch_blocks;    // first blocks of the grid, which prefetch while earlier kernels still run
    float dt_min;
    float dt_max;
};
