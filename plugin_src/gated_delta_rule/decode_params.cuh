// The argument of the one-token and few-token kernel of gated_delta_rule.
#pragma once

#include "common/rows.cuh"

// Strides count elements. Sizes, and the decays of a head, are contiguous everywhere, and a slot of the states is
// [value heads][KEY_SIZE][VALUE_SIZE] without gaps at a multiple of 16 bytes. state and state_out may be the same
// memory.
struct GatedDeltaDecode {
    Rows rows;
    const void* q;       // row r, token t, key head h: r * q_row + t * q_token + h * q_head
    const void* k;
    const void* v;       // row r, token t, value head h: r * v_row + t * v_token + h * v_head
    const float* g;      // row r, token t, value head h: r * g_row + t * g_token + h * (number of decays)
    const void* beta;    // row r, token t, value head h: r * beta_row + t * beta_token + h
    const void* state;   // slot s: s * state_slot
    void* o;             // as v
    void* state_out;     // as state
    int64_t q_row;
    int64_t q_token;
    int64_t q_head;
    int64_t k_row;
    int64_t k_token;
    int64_t k_head;
    int64_t v_row;
    int64_t v_token;
    int64_t v_head;
    int64_t g_row;
    int64_t g_token;
    int64_t beta_row;
    int64_t beta_token;
    int64_t o_row;
    int64_t o_token;
    int64_t o_head;
    int64_t state_slot;
    int64_t state_out_slot;
    int values_per_key;  // value heads of a key head
    int ahead;           // blocks from one to the one whose state it prefetches; 0: none
    float scale;         // of q
};
