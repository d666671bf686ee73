// Tiles of keys and queries in shared memory.
#pragma once

#include "common/async_copy.cuh"
#include "common/mma.cuh"
#include "gated_delta_rule/prefill_params.cuh"

// `valid` rows of a [CHUNK][COLUMNS] tile from global memory, zeros below, by THREADS_OF_TILE threads, of which this is
// number `thread`. ALIGNED: every row starts at a multiple of 16 bytes; otherwise elements are copied one by one.
template <typename T, int COLUMNS, int THREADS_OF_TILE, bool ALIGNED_ROWS>
__device__ __forceinline__ void load_tokens(T* tile, const T* source, int64_t row_stride, int valid, int thread) {
    using Layout = TileLayout<T, COLUMNS>;
    constexpr int UNITS = COLUMNS / Layout::UNIT;
    if constexpr (ALIGNED_ROWS && THREADS_OF_TILE % UNITS == 0) {
        // A thread stays in its column of units, so that its addresses only move on.
        constexpr int STEP = THREADS_OF_TILE / UNITS;
        const int unit = thread % UNITS, first = thread / UNITS;
        const T* from = source + first * row_stride + unit * Layout::UNIT;
        if (valid == CHUNK && CHUNK % STEP == 0) {
#pragma unroll
            for (int i = 0; i < CHUNK / STEP; ++i, from += STEP * row_stride)
                copy_async_16(tile + Layout::unit(first + i * STEP, unit), from, true);
        } else {
            for (int row = first; row < CHUNK; row += STEP, from += STEP * row_stride)
                copy_async_16(tile + Layout::unit(row, unit), row < valid ? from : source, row < valid);
        }
    } else if constexpr (ALIGNED_ROWS) {
        for (int i = thread; i < CHUNK * UNITS; i += THREADS_OF_TILE) {
            const int row = i / UNITS, unit = i % UNITS;
            const bool inside = row < valid;
            copy_async_16(tile + Layout::unit(row, unit),
                          inside ? source + row * row_stride + unit * Layout::UNIT : source, inside);
        }
    } else {
        for (int i = thread; i < CHUNK * COLUMNS; i += THREADS_OF_TILE) {
            const int row = i / COLUMNS, column = i % COLUMNS;
            tile[Layout::at(row, column)] = row < valid ? source[row * row_stride + column] : from_float<T>(0.0f);
        }
    }
}
