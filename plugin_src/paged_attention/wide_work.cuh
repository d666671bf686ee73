// The queries and the positions of a block of the kernels for latents.
//
// Macros: QUERIES (of a tile), KEYS (positions of a step).
#pragma once

#include "paged_attention/wide_params.cuh"

// A row's tokens, a tile of their queries, and the positions that this block reads.
struct Work {
    int row, head, tile, first_token, tokens, cached, begin = 0, end = 0;

    __device__ __forceinline__ explicit Work(const WideAttention& wide) {
        const PagedAttention& p = wide.call;
        const WideRow own(wide, blockIdx.z);
        row = own.row, first_token = own.first_token, tokens = own.tokens, cached = own.length - own.tokens;
        tile = blockIdx.x % wide.tiles;
        head = blockIdx.x / wide.tiles;
        if (own.length <= 0) tokens = 0;
        if (!has_queries(p)) return;
        const int last = min(tile * QUERIES + QUERIES, tokens * p.group) - 1;
        end = cached + last / p.group + 1;
        if (p.sliding_window > 0) begin = max(0, cached + tile * QUERIES / p.group + 1 - p.sliding_window);
        const int share = (end - begin + wide.splits - 1) / wide.splits, step = (share + KEYS - 1) / KEYS * KEYS;
        begin += blockIdx.y * step;
        end = min(end, begin + step);
    }
    __device__ __forceinline__ bool has_queries(const PagedAttention& p) const {
        return tile * QUERIES < tokens * p.group;
    }
    // Whether query `index` of the tile exists.
    __device__ __forceinline__ bool has(const PagedAttention& p, int index) const {
        return tile * QUERIES + index < tokens * p.group;
    }
    // Number of this block among all, whose results are joined.
    __device__ __forceinline__ int64_t part(const WideAttention& wide) const {
        return (int64_t(blockIdx.z) * gridDim.x + blockIdx.x) * wide.splits + blockIdx.y;
    }
    __device__ __forceinline__ int64_t offset(const PagedAttention& p, int index, int64_t token_stride,
                                              int64_t head_stride) const {
        const int query = tile * QUERIES + index;
        return (first_token + query / p.group) * token_stride + (head * p.group + query % p.group) * head_stride;
    }
};
