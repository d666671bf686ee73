// The argument of the kernels of selective_scan.
#pragma once

#include "common/rows.cuh"

// Strides count elements. Channels and STATE_SIZE are contiguous everywhere, and a slot of the states is [channels]
// [STATE_SIZE] without gaps. state and state_out may be the same memory.
struct SelectiveScan {
    Rows rows;
    const void* x;        // row r, token t: r * x_row + t * x_token
    const float* A;       // [channels][STATE_SIZE]
    const void* B;        // row r, token t, group g: r * B_row + t * B_token + g * B_group
    const void* C;
    const void* D;        // [channels]
    const void* dt;       // as x
    const void* dt_bias;  // [channels]
    const void* state;    // slot s: s * state_slot
    void* y;              // as x
    void* state_out;      // as state
    float* chunk_states;  // row r, chunk k: (r * chunks + k) * channels * STATE_SIZE, then as in a slot of the states
    float* chunk_steps;   // the same without the axis of STATE_SIZE
    int64_t x_row;
    int64_t x_token;
    int64_t B_row;
    int64_t B_token;
    int64_t B_group;
    int64_t C_row;
    int64_t C_token;
    int64_t C_group;
    int64_t dt_row;
    int64_t dt_token;
    int64_t y_row;
    int64_t y_token;
    int64_t state_slot;
    int64_t state_out_slot;
    int channels;
    int channels_per_group;
    int block_rows;    // of one block of step_rows
    int chunks;        // that a row is cut into; 1: rows are not cut
    int chunk_tokens;  // a multiple of TILE
    float dt_min;
    float dt_max;
};
