// Shapes and shared memory of prefill_registers.cu, and the ways of its tiles to it. For the macros of that file.
#pragma once

#include "common/async_copy.cuh"
#include "common/mma.cuh"
#include "update_ssm_state/prefill_decay.cuh"

using Product = Mma<DATA_T>;

constexpr int STATE_COLUMNS = (STATE_SIZE + 15) / 16 * 16;  // of B, C and the state; those past STATE_SIZE are zero
constexpr int WIDTH = 16;                                   // columns of the slice whose state a warp holds
constexpr int HOLDERS = 32 * (SLICE / WIDTH);               // threads that hold the state
constexpr int HELPERS = 128;                                // threads that load tiles and weigh scores
constexpr int THREADS = HELPERS + HOLDERS;
constexpr int AHEAD = 1;  // chunks on their way beside the two in use; with two, fewer blocks fit
constexpr int UNITS_OF_BLOCK = 1;
constexpr int UNIT_STATE = SLICE * STATE_COLUMNS;

#include "update_ssm_state/prefill_task.cuh"

using Wide = SteppedLayout<DATA_T, STATE_COLUMNS>;
using Narrow = SteppedLayout<DATA_T, SLICE>;
using Square = SteppedLayout<DATA_T, CHUNK>;

// While a chunk is computed, the scores of the next one are weighed. AHEAD chunks more are on their way.
struct Shared {
    struct Projections {
        alignas(128) DATA_T B[Wide::elements(CHUNK)];  // [token][state_size], and so C
        alignas(128) DATA_T C[Wide::elements(CHUNK)];
    };
    Projections projections[2 + AHEAD];
    alignas(128) DATA_T x[1 + AHEAD][Narrow::elements(CHUNK)];  // [token][slice]
    alignas(128) DATA_T weights[2][Square::elements(CHUNK)];    // [token][earlier token]
    ChunkDecay decay[3];

    __device__ __forceinline__ Projections& projections_of(int chunk) { return projections[chunk % (2 + AHEAD)]; }
    __device__ __forceinline__ DATA_T* x_of(int chunk) { return x[chunk % (1 + AHEAD)]; }
    __device__ __forceinline__ DATA_T* weights_of(int chunk) { return weights[chunk % 2]; }
    __device__ __forceinline__ ChunkDecay& decay_of(int chunk) { return decay[chunk % 3]; }
};

// `valid` rows of a [CHUNK][COLUMNS] tile, of which `columns` are read, zeros elsewhere. By the helpers.
template <typename LAYOUT>
__device__ __forceinline__ void load_tile(DATA_T* tile, const DATA_T* source, int64_t row_stride, int columns,
                                          int valid) {
    constexpr int UNITS = LAYOUT::UNITS, ROWS = HELPERS / UNITS;
    if constexpr (HELPERS % (8 * UNITS) == 0 && ROWS <= CHUNK) {  // a thread copies the same unit of every ROWS-th row
        const int first = threadIdx.x / UNITS, unit = threadIdx.x % UNITS;
        const int last = unit * 8 < columns ? valid : 0;
        const DATA_T* from = source + first * row_stride + unit * 8;
        DATA_T* to = tile + LAYOUT::unit(first, unit);
#pragma unroll
        for (int i = 0; i < CHUNK; i += ROWS) {
            copy_async_16(to + i * LAYOUT::PITCH, first + i < last ? from : source, first + i < last);
            from += ROWS * row_stride;
        }
    } else {
#pragma unroll 2
        for (int i = threadIdx.x; i < CHUNK * UNITS; i += HELPERS) {
            const int row = i / UNITS, unit = i % UNITS;
            const bool inside = row < valid && unit * 8 < columns;
            const DATA_T* from = inside ? source + row * row_stride + unit * 8 : source;
            copy_async_16(tile + LAYOUT::unit(row, unit), from, inside);
        }
    }
}

// B and C of a chunk, and x of the one before it; what lies outside of the segment is left out.
__device__ __forceinline__ void load_chunks(Shared& shared, const Tensors& in, const PrefillParams& p, const Task& task,
                                            int chunk) {
    if (chunk < task.last) {
        Shared::Projections& to = shared.projections_of(chunk);
        const int64_t token = static_cast<int64_t>(chunk) * CHUNK;
        const int valid = task.valid(chunk);
        load_tile<Wide>(to.B, in.B + token * p.B_token, p.B_token, STATE_SIZE, valid);
        if constexpr (PASS != 1) load_tile<Wide>(to.C, in.C + token * p.C_token, p.C_token, STATE_SIZE, valid);
    }
    if (chunk > task.first && chunk <= task.last) {
        const DATA_T* from = in.x + static_cast<int64_t>(chunk - 1) * CHUNK * p.x_token;
        load_tile<Narrow>(shared.x_of(chunk - 1), from, p.x_token, task.columns, task.valid(chunk - 1));
    }
    commit_copies();
}
