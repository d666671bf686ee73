// Parameters of the causal convolution kernels.
#pragma once

#include "common/rows.cuh"

// Strides count elements. The last axis of x and y, and the last two of the states, are contiguous; weight is
// [channels, KERNEL] (oldest tap first), bias [channels] or null. state and state_out may be the same memory.
struct CausalConv1d {
    const void* x;       // row r, token t, channel c: r * x_row_stride + t * x_token_stride + c
    const void* weight;
    const void* bias;
    const void* state;   // slot s, channel c, column j (oldest first): s * state_stride + c * KERNEL + j
    void* y;             // as x
    void* state_out;     // as state
    int64_t x_row_stride;
    int64_t x_token_stride;
    int64_t y_row_stride;
    int64_t y_token_stride;
    int64_t state_stride;
    int64_t state_out_stride;
    Rows rows;
    int channels;
    int prefetch_blocks; // first blocks of shift_update's grid, which prefetch while earlier kernels still run
    int block_tokens;    // tokens of a row that one block of sliding_window computes, at least KERNEL - 1
};
