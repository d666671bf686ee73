// Shapes and global memory accesses of the warp-level chunked kernel.
#pragma once

#include "common/async_copy.cuh"
#include "common/mma.cuh"
#include "update_ssm_state/prefill_decay.cuh"

constexpr int WARPS = 4 * PARTS;
constexpr int THREADS = 32 * WARPS;
__host__ __device__ constexpr int round_up(int value, int multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

// threadIdx.x, from which the compiler computes addresses anew for every chunk: kept, they would take the registers.
__device__ __forceinline__ int thread_of_chunk() {
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}

// Where the tensors of a block begin, in elements: at the first token of its row, its head, group and slice.
struct Offsets {
    int64_t x, B, C, dt, y, state, state_out;
};

// The shared memory of a block. B and C are [token][state_size], x is [token][slice], the state, transposed and rounded
// to the data type, is [state_size][slice]; axes are padded with zeros to multiples of 16. weights are
// [token][earlier token].
template <typename T, int STATE, int WIDTH, int DEPTH>
struct PrefillShared {
    using Wide = TileLayout<T, round_up(STATE, 16)>;
    using Narrow = TileLayout<T, WIDTH>;
    using Square = TileLayout<T, CHUNK>;

    struct Stage {
        alignas(128) T B[Wide::elements(CHUNK)];
        alignas(128) T x[Narrow::elements(CHUNK)];
    };
    Stage stages[DEPTH];
    alignas(128) T C[Wide::elements(CHUNK)];
    alignas(128) T state[Narrow::elements(round_up(STATE, 16))];
    alignas(128) T weights[PARTS == 1 ? 8 : Square::elements(CHUNK)];  // with one part they stay in registers
    ChunkDecay decay[2];
    Offsets offsets;  // these and the scalars are here because registers are few
    HeadScalars head;
    float skip;  // D
#if GATE_ACCESS > 0
    int64_t gate;  // as offsets
#endif
};

// `valid` rows of a [CHUNK][COLUMNS] tile from global memory, zeros below. WHOLE_UNITS: every row starts at a multiple
// of 16 bytes; otherwise elements are copied one by one.
template <typename T, int COLUMNS, typename LAYOUT, bool WHOLE_UNITS>
__device__ __forceinline__ void load_tile(T* tile, const T* source, int64_t row_stride, int columns, int valid) {
    if constexpr (WHOLE_UNITS) {
        constexpr int UNIT = LAYOUT::UNIT;
        constexpr int UNITS = COLUMNS / UNIT;
        const int thread = thread_of_chunk();
        if constexpr (THREADS % (8 * UNITS) == 0 && THREADS / UNITS <= CHUNK) {
            // A thread copies the same unit of every ROWS-th row.
            constexpr int ROWS = THREADS / UNITS;
            const int first = thread / UNITS, unit = thread % UNITS;
            const int last = unit * UNIT < columns ? valid : 0;
            const T* from = source + first * row_stride + unit * UNIT;
            T* to = tile + LAYOUT::unit(first, unit);
#pragma unroll
            for (int i = 0; i < CHUNK; i += ROWS) {
                copy_async_16(to + i * LAYOUT::PITCH, first + i < last ? from : source, first + i < last);
                from += ROWS * row_stride;
            }
        } else {
#pragma unroll
            for (int i = 0; i < CHUNK * UNITS; i += THREADS) {
                const int row = (i + thread) / UNITS, unit = (i + thread) % UNITS;
                const bool inside = row < valid && unit * UNIT < columns;
                const T* from = inside ? source + row * row_stride + unit * UNIT : source;
                if (row < CHUNK) copy_async_16(tile + LAYOUT::unit(row, unit), from, inside);
            }
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
