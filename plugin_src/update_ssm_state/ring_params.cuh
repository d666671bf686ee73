// The argument of the kernel of update_ssm_state whose states have a ring of tokens.
#pragma once

#include "update_ssm_state/decode_params.cuh"

// A ring holds what the last tokens of a slot have to do with its state, which has not taken them up yet. No gaps.
struct SsmRing {
    SsmDecode decode;
    void* x;             // [slots][heads][RING][HEAD_DIM]
    void* B;             // [slots][groups][RING][STATE_SIZE]
    float* steps;        // [slots][heads][RING][2]: log decay, and dt after bias, softplus and clamp
    const int* lengths;  // [slots]: tokens in the ring, less than RING
    int heads;
    int groups;
    int most_added;      // 1: rows of one token add it to their rings, 0: none does; rows with more flush theirs
    int flushes_empty;   // whether those of rows without tokens are, too
};
