// The arguments of the kernels of routed_experts and of the choice before them.
#pragma once

#include "common/integers.cuh"

// Attributes of the operator: the factor in the sigmoid of silu; of gated experts the bound of both halves, and what is
// added to the second half.
struct ExpertActivation {
    float alpha;
    float limit;
    float offset;
};

// A route is one of the top_k choices of a token; routes lie in the order of the tokens. Strides count elements.
struct RoutedExperts {
    const void* x;                // [tokens][hidden]
    const int* expert_ids;        // [tokens][top_k]
    const float* expert_weights;  // [tokens][top_k]
    const void* up_weight;        // [experts][gate and up, or up][intermediate][hidden]
    const void* down_weight;      // [experts][hidden][intermediate]
    const void* up_bias;          // [experts][gate and up, or up][intermediate] or null
    const void* down_bias;        // [experts][hidden] or null
    float* inner;                 // [tokens * top_k][intermediate], between the two kernels
    void* y;                      // [tokens][hidden]
    int64_t x_stride;
    int tokens;
    int top_k;
    int hidden;
    int intermediate;
    ExpertActivation activation;
};

// The same for weights in tiles (linear_decode/tile.cuh); the rows of all experts form one matrix.
struct TiledExperts {
    const void* x;
    const int* expert_ids;
    const float* expert_weights;
    const void* up_tiles;         // [experts * (gate and up, or up) * intermediate][hidden]
    const float* up_factors;      // [rows of up_tiles]
    const void* down_tiles;       // [experts * hidden][intermediate]
    const float* down_factors;
    const void* up_bias;          // as in RoutedExperts
    const void* down_bias;
    void* inner;                  // [tokens * top_k][intermediate], of the type of x
    void* y;
    int64_t x_stride;
    int tokens;
    int top_k;
    int experts;
    int hidden;
    int intermediate;
    ExpertActivation activation;
};

struct TopKSoftmax {
    const float* logits;  // [tokens][experts]
    float* weights;       // [tokens][top_k]
    int* ids;             // [tokens][top_k]
    int tokens;
    int experts;
    int top_k;
    int normalized;  // 1: the weights of a token add up to 1; 0: they are shares among all experts
};
