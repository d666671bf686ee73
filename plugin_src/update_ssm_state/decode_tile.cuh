// Rows of a head's state in registers: every row lies across LANES lanes of a warp between its one read and its one
// write.
//
// Macros: DATA_T; STATE_T; HEAD_DIM; STATE_SIZE; LANES (of a row, a power of two); STATE_ACCESS (elements of one access
// to the state); PASSES (rows of a lane, all in flight at once); THREADS. States of 8 bits (int8, E4m3) have a float
// factor a row.
#pragma once

#include "common/access.cuh"

namespace {

constexpr int UNITS = STATE_SIZE / STATE_ACCESS;               // accesses of a row
constexpr int UNITS_OF_LANE = (UNITS + LANES - 1) / LANES;     // lane l has the units l, l + LANES, ...
constexpr int ELEMENTS = UNITS_OF_LANE * STATE_ACCESS;
constexpr int ROWS_OF_PASS = 32 / LANES;
constexpr int ROWS_OF_WARP = ROWS_OF_PASS * PASSES;            // neighbours
constexpr int ROWS_OF_BLOCK = THREADS / 32 * ROWS_OF_WARP;
constexpr int PARTS = (HEAD_DIM + ROWS_OF_BLOCK - 1) / ROWS_OF_BLOCK;
constexpr bool EXACT_LANES = UNITS % LANES == 0;
constexpr bool EXACT_ROWS = HEAD_DIM % ROWS_OF_BLOCK == 0;
constexpr bool QUANTIZED = sizeof(STATE_T) == 1;

__device__ __forceinline__ bool has_unit(int lane, int j) { return EXACT_LANES || j * LANES + lane < UNITS; }

__device__ __forceinline__ float sum_of_row(float value) {
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

// A lane's rows of a part of a head: row, row + ROWS_OF_PASS, ...; row counts from the start of the head.
struct StateTile {
    Access<STATE_T, STATE_ACCESS> units[PASSES][UNITS_OF_LANE];
    float scales[QUANTIZED ? PASSES : 1];

    __device__ static __forceinline__ bool has_row(int row, int p) {
        return EXACT_ROWS || row + p * ROWS_OF_PASS < HEAD_DIM;
    }

    // head: the head's state; scale: the head's factors where it is quantized.
    __device__ __forceinline__ void load(const STATE_T* head, const float* scale, int row, int lane) {
        head += row * STATE_SIZE + lane * STATE_ACCESS;
#pragma unroll
        for (int p = 0; p < PASSES; ++p) {
#pragma unroll
            for (int j = 0; j < UNITS_OF_LANE; ++j) {
                if (!EXACT_LANES || !EXACT_ROWS) units[p][j] = {};
                if (has_row(row, p) && has_unit(lane, j))
                    units[p][j].load_streamed(head + p * ROWS_OF_PASS * STATE_SIZE + j * LANES * STATE_ACCESS);
            }
            if (QUANTIZED) scales[p] = has_row(row, p) ? scale[row + p * ROWS_OF_PASS] : 0.0f;
        }
    }

    __device__ __forceinline__ void store(STATE_T* head, float* scale, int row, int lane, int p) const {
        head += row * STATE_SIZE + lane * STATE_ACCESS;
#pragma unroll
        for (int j = 0; j < UNITS_OF_LANE; ++j)
            if (has_row(row, p) && has_unit(lane, j))
                units[p][j].store_streamed(head + p * ROWS_OF_PASS * STATE_SIZE + j * LANES * STATE_ACCESS);
        if (QUANTIZED && lane == 0 && has_row(row, p)) scale[row + p * ROWS_OF_PASS] = scales[p];
    }
};

// y of the rows of a warp in one access: lane l of a row writes pass l.
__device__ __forceinline__ void write_rows(DATA_T* y, const float (&values)[PASSES], int row, int lane) {
#pragma unroll
    for (int first = 0; first < PASSES; first += LANES) {
        float mine = values[first];
#pragma unroll
        for (int p = first + 1; p < PASSES && p < first + LANES; ++p)
            if (lane == p - first) mine = values[p];
        const int at = row + (first + lane) * ROWS_OF_PASS;
        if (first + lane < PASSES && (EXACT_ROWS || at < HEAD_DIM)) y[at] = from_float<DATA_T>(mine);
    }
}

}  // namespace
