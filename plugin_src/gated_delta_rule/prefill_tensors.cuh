// Where the tensors of a block of gated delta rule prefill begin, and what it writes beside the chunks of its row.
//
// Macros: DATA_T, STATE_T, KEY_SIZE, VALUE_SIZE.
#pragma once

#include "common/element.cuh"
#include "common/rows.cuh"
#include "gated_delta_rule/prefill_params.cuh"

// All but the chunks, of `Block`'s members: at the first token of the row, the head and the slice.
template <typename Block>
__device__ __forceinline__ void begin_tensors(Block& in, const GatedDeltaPrefill& p, const RowView& view, int head,
                                              int column) {
    const int64_t token = view.first_token, columns = int64_t(head) * KEY_SIZE * VALUE_SIZE + column;
    in.k = static_cast<const DATA_T*>(p.k) + view.row * p.k_row + token * p.k_token + blockIdx.y * p.k_head;
    in.q = static_cast<const DATA_T*>(p.q) + view.row * p.q_row + token * p.q_token + blockIdx.y * p.q_head;
    in.v = static_cast<const DATA_T*>(p.v) + view.row * p.v_row + token * p.v_token + head * p.v_head + column;
    in.o = static_cast<DATA_T*>(p.o) + view.row * p.o_row + token * p.o_token + head * p.o_head + column;
    in.state = static_cast<const STATE_T*>(p.state) + view.slot * p.state_slot + columns;
    in.state_out = static_cast<STATE_T*>(p.state_out) + view.slot * p.state_out_slot + columns;
}

// Zeros at the padding tokens of a dense row; the state as it was where the row has no token. By THREADS threads, for
// `columns` columns from the block's first one on.
template <int THREADS, typename Block>
__device__ __forceinline__ void finish_row(const Block& in, const GatedDeltaPrefill& p, const RowView& view,
                                           int columns) {
    for (int i = threadIdx.x; i < (view.written - view.length) * columns; i += THREADS)
        in.o[int64_t(view.length + i / columns) * p.o_token + i % columns] = from_float<DATA_T>(0.0f);
    if (view.length == 0 && in.state != in.state_out) {
        for (int i = threadIdx.x; i < KEY_SIZE * columns; i += THREADS)
            in.state_out[i / columns * VALUE_SIZE + i % columns] = in.state[i / columns * VALUE_SIZE + i % columns];
    }
}
