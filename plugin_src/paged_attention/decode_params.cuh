// The argument of the decode kernel of paged_attention.
#pragma once

#include "paged_attention/params.cuh"

// An item is one token that attends: a row of one token, or where every_token is set any token. A unit is a KV head of
// an item with up to QUERIES of its query heads.
// CLUSTER 0: the blocks share the steps of all items evenly; `partials` holds two parts a block (see decode_merge.cuh),
// and counters one number for each item and unit, zero before and after the launch.
// Else a unit has the CLUSTER blocks of a cluster: the grid is (CLUSTER, units, items).
struct PagedDecode {
    PagedAttention call;
    float* partials;
    int* counters;
    int items;         // rows, or tokens where every_token is set
    int every_token;   // 0: rows of another number of tokens than one are left out
    int units;         // of an item: KV heads times `tiles`
    int tiles;         // of QUERIES heads that a group has
    int merged_heads;  // rows of the merge buffers: the lesser of the group and QUERIES
    int block_steps;   // steps of a page
    int staged;        // columns of block_table that blocks of a cluster copy before they know a length
};
