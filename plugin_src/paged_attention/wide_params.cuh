// The argument of the kernels of paged_attention for wide heads.
#pragma once

#include "paged_attention/params.cuh"

// A tile has QUERIES queries of one row and KV head: query i of them all is head i % group of token i / group.
struct WideAttention {
    PagedAttention call;
    float* outputs;     // of splits, [part][query][HEAD_DIM], not divided by the sums; null where rows are not split
    float* sums;        // [part][query][2]: score that has weight 1, in powers of two, and the sum of all weights, 0: no key
    int tiles;          // of the queries of a row and KV head
    int splits;         // of the positions of a row
};
