// The argument of the kernels of paged_attention for latents, and the tokens that a block has.
#pragma once

#include "paged_attention/params.cuh"

// A tile has QUERIES queries of one row, or of one token, and KV head: query i of them all is head i % group of token
// i / group.
struct WideAttention {
    PagedAttention call;
    float* outputs;     // of splits, [part][query][HEAD_DIM], not divided by the sums; null where rows are not split
    float* sums;        // [part][query][2]: score of weight 1, in powers of two, and the sum of all weights, 0: no key
    int tiles;          // of the queries of a row and KV head
    int splits;         // of the positions of a row
    int by_token;       // 1: z of the grid is a token, 0: a row
};

// A row of the grid: the first of some tokens, their number, and the positions up to the last of them; 0 for a padding
// row.
struct WideRow {
    int row, first_token, tokens, length;

    __device__ __forceinline__ WideRow(const WideAttention& wide, int index) : row(index) {
        const PagedAttention& p = wide.call;
        if (wide.by_token && (p.query_start_loc[index] != index || p.query_start_loc[index + 1] != index + 1)) {
            // The last row that begins at the token or before it.
            int end = p.rows;
            for (row = 0; end - row > 1;) {
                const int middle = (row + end) / 2;
                (p.query_start_loc[middle] <= index ? row : end) = middle;
            }
        }
        const int next = p.query_start_loc[row + 1];
        first_token = wide.by_token ? index : p.query_start_loc[row];
        tokens = wide.by_token ? 1 : next - first_token;
        length = p.seq_lens[row];
        // Tokens behind those of the last row belong to none.
        if (wide.by_token && length > 0) length = index < next ? length - (next - 1 - index) : 0;
    }
};
