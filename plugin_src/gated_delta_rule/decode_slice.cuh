// A slice of columns of one head's state in registers, between its one read and its one write, and the sums over its
// rows.
//
// Macros: DATA_T; STATE_T; KEY_SIZE (rows of a state); VALUE_SIZE (columns); COLUMN_LANES (threads side by side in a
// row, a power of two up to 32); ROWS (of a thread, neighbours; 4 or 8); THREADS; MANY and SPECULATIVE (see
// decode_slices.cu).
#pragma once

#include "common/access.cuh"

namespace {

constexpr int ACCESS = sizeof(STATE_T) == 1 ? 8 : 16 / sizeof(STATE_T);  // elements of one access to the state
constexpr int SLICE = COLUMN_LANES * ACCESS;  // columns of a block
constexpr int SLICES = (VALUE_SIZE + SLICE - 1) / SLICE;
constexpr int ROW_LANES = 32 / COLUMN_LANES;  // of a warp
constexpr int WARPS = THREADS / 32;
constexpr int SUMS = 2 * ACCESS;              // of a thread: k @ state and q @ state for each of its columns
constexpr int COLUMNS = (SLICE + THREADS - 1) / THREADS;  // that a thread finishes
constexpr int SUMS_KEPT = SUMS / ROW_LANES;   // after the warp's lanes have added theirs
constexpr bool EXACT_ROWS = KEY_SIZE == THREADS / COLUMN_LANES * ROWS;
constexpr bool EXACT_COLUMNS = VALUE_SIZE % SLICE == 0;
static_assert(SUMS_KEPT >= 1, "every lane keeps sums");

// What a block adds up: [0] is k @ state, [1] is q @ state, per warp; and the warp's part of |k|^2, |q|^2 and q @ k.
struct BlockSums {
    alignas(16) float columns[WARPS][2][SLICE];
    alignas(16) float products[WARPS][4];
    alignas(16) float written[SLICE];  // beta times the difference, over |k|
};

// The rows and columns of a thread.
struct Place {
    int row, column_lane, column;
    bool inside;  // of the state

    __device__ __forceinline__ Place() {
        row = int(threadIdx.x) / COLUMN_LANES * ROWS;
        column_lane = threadIdx.x % COLUMN_LANES;
        column = blockIdx.x % SLICES * SLICE + column_lane * ACCESS;
        inside = (EXACT_ROWS || row < KEY_SIZE) && (EXACT_COLUMNS || column < VALUE_SIZE);
    }
    // Columns that the thread finishes once the block has added up.
    __device__ static __forceinline__ int finished_column(int i) {
        return blockIdx.x % SLICES * SLICE + int(threadIdx.x) + i * THREADS;
    }
    __device__ static __forceinline__ bool finishes(int i) {
        return int(threadIdx.x) + i * THREADS < SLICE && (EXACT_COLUMNS || finished_column(i) < VALUE_SIZE);
    }
};

#if MANY && !SPECULATIVE
// One access of a row of the state as floats: a 16-bit state is rounded once per call, when it is stored.
struct StateRow {
    float values[ACCESS];

    __device__ __forceinline__ void load_streamed(const STATE_T* from) {
        Access<STATE_T, ACCESS> packed;
        packed.load_streamed(from);
        packed.unpack(values);
    }
    __device__ __forceinline__ void store_streamed(STATE_T* to) const {
        Access<STATE_T, ACCESS> packed;
        packed.pack(values);
        packed.store_streamed(to);
    }
    __device__ __forceinline__ void unpack(float* to) const {
#pragma unroll
        for (int e = 0; e < ACCESS; ++e) to[e] = values[e];
    }
    __device__ __forceinline__ void pack(const float* from) {
#pragma unroll
        for (int e = 0; e < ACCESS; ++e) values[e] = from[e];
    }
};
#else
// Draft tokens are rounded after each token, as by as many calls of one token.
template <typename T, bool IS_BYTES = sizeof(T) == 1>
struct RowType {
    using type = Access<T, ACCESS>;
};
// Of 8 bits: the numbers without their scales.
template <typename T>
struct RowType<T, true> {
    struct type : Access<T, ACCESS> {
        __device__ __forceinline__ void unpack(float* to) const {
            Access<T, ACCESS>::unpack(to);
#pragma unroll
            for (int e = 0; e < ACCESS; ++e) to[e] = (to[e] - ByteCode<T>::OFFSET) * ByteCode<T>::UNIT;
        }
    };
};
using StateRow = typename RowType<STATE_T>::type;
#endif

struct StateSlice {
    StateRow rows[ROWS];

    // head: the state of the block's head.
    __device__ __forceinline__ void load(const STATE_T* head, const Place& at) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            if (!EXACT_ROWS || !EXACT_COLUMNS) rows[i] = {};
            if (at.inside) rows[i].load_streamed(head + (at.row + i) * VALUE_SIZE + at.column);
        }
    }
    __device__ __forceinline__ void store(STATE_T* head, const Place& at) const {
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
            if (at.inside) rows[i].store_streamed(head + (at.row + i) * VALUE_SIZE + at.column);
    }
    // sums += k @ state, then q @ state, over the rows of this thread.
    __device__ __forceinline__ void add_products(float (&sums)[SUMS], const float (&k)[ROWS],
                                                 const float (&q)[ROWS]) const {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            float values[ACCESS];
            rows[i].unpack(values);
#pragma unroll
            for (int e = 0; e < ACCESS; ++e) {
                sums[e] = fmaf(k[i], values[e], sums[e]);
                sums[ACCESS + e] = fmaf(q[i], values[e], sums[ACCESS + e]);
            }
        }
    }
    // Row i becomes decay[i] times itself, plus k[i] * written.
    template <int DECAYS>
    __device__ __forceinline__ void update(const float (&decay)[DECAYS], const float (&k)[ROWS],
                                           const float (&written)[ACCESS]) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            float values[ACCESS];
            rows[i].unpack(values);
#pragma unroll
            for (int e = 0; e < ACCESS; ++e) values[e] = fmaf(k[i], written[e], decay[DECAYS == 1 ? 0 : i] * values[e]);
            rows[i].pack(values);
        }
    }
};

// Adds over the row lanes of a warp; each step keeps the half of the sums that the lane's bit names, so that in the end
// the lane has SUMS_KEPT of them, the first being that of index (lane / COLUMN_LANES) * SUMS_KEPT.
template <int COUNT = SUMS>
__device__ __forceinline__ void reduce_over_rows(float (&sums)[SUMS], int lane) {
    if constexpr (COUNT > SUMS_KEPT) {
        constexpr int DISTANCE = 16 * COUNT / SUMS, HALF = COUNT / 2;
        const bool upper = lane & DISTANCE;
#pragma unroll
        for (int i = 0; i < HALF; ++i) {
            const float given = upper ? sums[i] : sums[i + HALF];
            sums[i] = (upper ? sums[i + HALF] : sums[i]) + __shfl_xor_sync(0xffffffffu, given, DISTANCE);
        }
        reduce_over_rows<HALF>(sums, lane);
    }
}

// The sum over the row lanes of a warp, in all of them.
__device__ __forceinline__ float sum_of_rows(float value) {
#pragma unroll
    for (int distance = 16; distance >= COLUMN_LANES; distance /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

}  // namespace
