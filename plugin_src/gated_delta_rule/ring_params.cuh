// The argument of the kernel of gated_delta_rule whose states have a ring of tokens.
#pragma once

#include "gated_delta_rule/decode_params.cuh"

// A ring holds the last tokens of a slot, which its state does not include yet. No gaps.
struct GatedDeltaRing {
    GatedDeltaDecode decode;
    void* k;             // [slots][key heads][RING][KEY_SIZE], not normalised
    float* written;      // [slots][value heads][RING][VALUE_SIZE]: token j adds the outer product of k_j and written_j
    float* decays;       // [slots][value heads][RING][number of decays], logarithms
    const int* lengths;  // [slots]: tokens in the ring, less than RING
    int key_heads;
    int value_heads;
    int most_added;      // 1: rows of one token add it to their rings, 0: none does; rows of more flush theirs
    int flushes_empty;   // whether those of rows without tokens are, too
};
