// Shapes and global memory accesses of the warp-level chunked kernel.
#pragma once

#include "common/async_copy.cuh"
#include "common/mma.cuh"
#include "update_ssm_state/prefill_decay.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;
__host__ __device__ constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// The shared memory of a block. B and C are [token][state_size], x is [token][slice], the state, transposed and rounded to
// the data type, is [state_size][slice]; axes are padded with zeros to multiples of 16.
template <typename T, int STATE, int WIDTH, int DEPTH>
struct PrefillShared {
    using Wide = TileLayout<T, round_up(STATE, 16)>;
    using Narrow = TileLayout<T, WIDTH>;

    struct Stage {
        alignas(128) T B[Wide::elements(CHUNK)];
        alignas(128) T C[Wide::elements(CHUNK)];
        alignas(128) T x[Narrow::elements(CHUNK)];
    };
    Stage stages[DEPTH];
    alignas(128) T state[Narrow::elements(round_up(STATE, 16))];
    ChunkDecay decay[2];
};

// `valid` rows of a [CHUNK][COLUMNS] tile from global memory, zeros below. WHOLE_UNITS: every row starts at a multiple of 16
// bytes; otherwise elements are copied one by one.
template <typename T, int COLUMNS, typename LAYOUT, bool WHOLE_UNITS>
__device__ __forceinline__ void load_tile(T* tile, const T* source, int64_t row_stride, int columns, int valid) {
    if constexpr (WHOLE_UNITS) {
        constexpr int UNIT = LAYOUT::UNIT;
        constexpr int UNITS = COLUMNS / UNIT;
#pragma unroll
        for (int i = threadIdx.x; i < CHUNK * UNITS; i += THREADS) {
            const int row = i / UNITS, unit = i % UNITS;
            const bool inside = row < valid && unit * UNIT < columns;
            copy_async_16(tile + LAYOUT::unit(row, unit), inside ? source + row * row_stride + unit * UNIT : source, inside);
        }
    } else {
        for (int i = threadIdx.x; i < CHUNK * COLUMNS; i += THREADS) {
            const int row = i / COLUMNS, column = i % COLUMNS;
            const bool inside = row < valid && column < columns;
            tile[LAYOUT::at(row, column)] = inside ? source[row * row_stride + column] : from_float<T>(0.0f);
        }
    }
}

// Two neighbouring elements of one row of y.
template <typename T, bool WHOLE_UNITS>
__device__ __forceinline__ void store_pair(T* target, float first, float second) {
    if constexpr (WHOLE_UNITS) {
        *reinterpret_cast<Vector<T, 2>*>(target) = {from_float<T>(first), from_float<T>(second)};
    } else {
        target[0] = from_float<T>(first);
        target[1] = from_float<T>(second);
    }
}
