// Products of one row of x with 16 rows of weights in tiles; the warps of a block share the slices of inputs.
//
// Macros: those of linear_decode/tile_products.cuh with ROW_BLOCKS, GATED and NORM for a plain product of few rows;
// THREADS.
#pragma once

#include "common/launch.cuh"
#include "linear_decode/tile_products.cuh"
#include "routed_experts/params.cuh"

constexpr int OUTPUTS = 16;

// Weights [8 * groups][inputs] in tiles.
struct TiledMatrix {
    const unsigned char* tiles;
    int groups, inputs;

    __device__ __forceinline__ int slices() const { return (inputs + TILE_INPUTS - 1) / TILE_INPUTS; }

    // Partial sums of x . weight over slice `slice` for the 16 rows from group `group` on: lane 4 * g has rows g and
    // g + 8. A second group beyond the last is a copy of the last; its sums are unused.
    __device__ __forceinline__ float2 multiply(const DATA_T* x, int group, int slice) const {
        LinearDecode row;
        row.x = x;
        row.x_stride = 0;
        row.rows = 1;
        row.inputs = inputs;
        float unused[ROW_BLOCKS], sums[ROW_BLOCKS][4] = {};
        Slice part;
        part.load(row, slice, unused);
        const unsigned char* first = tiles + (int64_t(slice) * groups + group) * TILE_BYTES;
        part.multiply_tiles(sums, first, group + 1 < groups ? first + TILE_BYTES : first);
        return make_float2(sums[0][0], sums[0][2]);
    }
};

// The warps' sums of COUNT * 16 rows, added in the order of the warps.
template <int COUNT>
struct RowSums {
    float values[WARPS][COUNT][OUTPUTS];

    __device__ __forceinline__ void store(const float2 (&sums)[COUNT]) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            if (lane % 4 == 0) values[warp][i][lane / 4] = sums[i].x, values[warp][i][lane / 4 + 8] = sums[i].y;
        }
        __syncthreads();
    }
    __device__ __forceinline__ float total(int i, int output) const {
        float sum = 0.0f;
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++) sum += values[warp][i][output];
        return sum;
    }
};
