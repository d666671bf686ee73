// Tiles of keys and queries in shared memory.
#pragma once

#include "common/async_copy.cuh"
#include "common/mma.cuh"
#include "gated_delta_rule/prefill_params.cuh"

// `valid` rows of a [CHUNK][COLUMNS] tile from global memory, zeros below. ALIGNED: every row starts at a multiple of 16
// bytes; otherwise elements are copied one by one.
template <typename T, int COLUMNS, int THREADS_OF_BLOCK, bool ALIGNED_ROWS>
__device__ __forceinline__ void load_tokens(T* tile, const T* source, int64_t row_stride, int valid) {
    using Layout = TileLayout<T, COLUMNS>;
    if constexpr (ALIGNED_ROWS) {
        constexpr int UNITS = COLUMNS / Layout::UNIT;
#pragma unroll
        for (int i = threadIdx.x; i < CHUNK * UNITS; i += THREADS_OF_BLOCK) {
            const int row = i / UNITS, unit = i % UNITS;
            const bool inside = row < valid;
            copy_async_16(tile + Layout::unit(row, unit), inside ? source + row * row_stride + unit * Layout::UNIT : source, inside);
        }
    } else {
        for (int i = threadIdx.x; i < CHUNK * COLUMNS; i += THREADS_OF_BLOCK) {
            const int row = i / COLUMNS, column = i % COLUMNS;
            tile[Layout::at(row, column)] = row < valid ? source[row * row_stride + column] : from_float<T>(0.0f);
        }
    }
}
