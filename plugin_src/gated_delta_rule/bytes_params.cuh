// The argument of the one-token kernel of gated_delta_rule over states of 8 bits.
#pragma once

#include "gated_delta_rule/decode_params.cuh"

// A column of a head's state has one scale; no gaps within a slot. The two pointers may be the same memory.
struct GatedDeltaBytes {
    GatedDeltaDecode decode;
    const float* state_scales;  // slot s, value head h, column c: s * scales_slot + h * VALUE_SIZE + c
    float* state_scales_out;
    int64_t scales_slot;
};
