// Where the tensors of a block of gated delta rule prefill begin.
//
// Macros: DATA_T, STATE_T, KEY_SIZE, VALUE_SIZE.
#pragma once

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
