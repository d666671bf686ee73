// What the blocks of a chunked kernel work on that computes units: slices of head_dim of the heads of one group, which
// share B and C. For DATA_T, STATE_T, HEAD_DIM, SLICE and these constants: UNITS_OF_BLOCK, and UNIT_STATE, the numbers
// that the state of a unit takes in scratch memory.
#pragma once

#include "update_ssm_state/prefill_params.cuh"

constexpr int SLICES = (HEAD_DIM + SLICE - 1) / SLICE;

// What one unit computes.
struct Task {
    RowView row;
    int group, head, slice, segment;
    int unit_index;      // of the row, counted over its blocks
    int columns;         // of head_dim in this slice; 0 for a warpgroup without work
    int first, last;     // chunks of this segment
    int chunks, share;   // of the row, of a segment

    __device__ __forceinline__ Task(const PrefillParams& p, int unit_of_block) {
        const int group_units = p.heads / p.groups * SLICES;
        const int group_blocks = (group_units + UNITS_OF_BLOCK - 1) / UNITS_OF_BLOCK;
        row = row_view(p.rows, blockIdx.y);
        group = blockIdx.x / group_blocks;
        const int unit = blockIdx.x % group_blocks * UNITS_OF_BLOCK + unit_of_block;
        head = group * (p.heads / p.groups) + unit / SLICES;
        slice = unit % SLICES;
        unit_index = blockIdx.x * UNITS_OF_BLOCK + unit_of_block;
        segment = blockIdx.z;
        columns = unit < group_units ? min(SLICE, HEAD_DIM - slice * SLICE) : 0;
        if (columns == 0) head = group * (p.heads / p.groups);
        chunks = (row.length + CHUNK - 1) / CHUNK;
        share = (chunks + p.segments - 1) / p.segments;
        first = min(chunks, segment * share);
        last = min(chunks, first + share);
    }
    __device__ __forceinline__ int valid(int chunk) const { return min(CHUNK, row.length - chunk * CHUNK); }
    __device__ __forceinline__ int64_t scratch_index(const PrefillParams& p, int of_segment) const {
        return (static_cast<int64_t>(blockIdx.y) * gridDim.x * UNITS_OF_BLOCK + unit_index) * p.segments + of_segment;
    }
    __device__ __forceinline__ float* scratch_state(const PrefillParams& p, int of_segment) const {
        return p.scratch + scratch_index(p, of_segment) * (UNIT_STATE);
    }
    __device__ __forceinline__ float* scratch_decay(const PrefillParams& p, int of_segment) const {
        const int64_t states = static_cast<int64_t>(p.rows.rows) * gridDim.x * UNITS_OF_BLOCK * p.segments;
        return p.scratch + states * (UNIT_STATE) + scratch_index(p, of_segment);
    }
};

struct Tensors {
    const DATA_T *x, *B, *C, *dt, *gate;
    DATA_T* y;
    const STATE_T* state;
    STATE_T* state_out;

    __device__ __forceinline__ Tensors(const PrefillParams& p, const Task& task) {
        const RowView& row = task.row;
        const int64_t column = static_cast<int64_t>(task.head) * HEAD_DIM + task.slice * SLICE;
        x = static_cast<const DATA_T*>(p.x) + row.row * p.x_row + row.first_token * p.x_token + column;
        B = static_cast<const DATA_T*>(p.B) + row.row * p.B_row + row.first_token * p.B_token + task.group * STATE_SIZE;
        C = static_cast<const DATA_T*>(p.C) + row.row * p.C_row + row.first_token * p.C_token + task.group * STATE_SIZE;
        dt = static_cast<const DATA_T*>(p.dt) + row.row * p.dt_row + row.first_token * p.dt_token + task.head;
        gate = static_cast<const DATA_T*>(p.gate) + row.row * p.gate_row + row.first_token * p.gate_token + column;
        y = static_cast<DATA_T*>(p.y) + row.row * p.y_row + row.first_token * p.y_token + column;
        state = static_cast<const STATE_T*>(p.state) + row.slot * p.state_slot + column * STATE_SIZE;
        state_out = static_cast<STATE_T*>(p.state_out) + row.slot * p.state_out_slot + column * STATE_SIZE;
    }
};
