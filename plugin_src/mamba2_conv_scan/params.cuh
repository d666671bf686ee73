// The argument of the kernel of mamba2_conv_scan.
#pragma once

#include "update_ssm_state/decode_params.cuh"

// Strides count elements; the channels of a token are contiguous. Both states may be updated in place.
struct Mamba2Step {
    SsmDecode ssm;              // x, B and C are the convolution's outputs without separate memory
    const void* conv_input;     // row r, token t, channel c (x, then B, then C): r * conv_row + t * conv_token + c
    const void* conv_weight;    // [channels][KERNEL], oldest tap first
    const void* conv_bias;      // [channels] or null
    const void* conv_state;     // slot s, channel c, column j: s * conv_state_slot + c * KERNEL + j
    void* conv_state_out;       // as conv_state
    int64_t conv_row;
    int64_t conv_token;
    int64_t conv_state_slot;
    int64_t conv_state_out_slot;
    int groups;
};
