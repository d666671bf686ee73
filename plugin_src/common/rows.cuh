// Tokens and state slot of a batch row, for dense and packed tensors.
#pragma once

#include "common/integers.cuh"

// Dense: tensors [batch, time, ...]; context_lengths [batch] counts the valid tokens; query_start_loc is null.
// Packed: tensors [tokens, ...]; row r has the tokens query_start_loc[r] to query_start_loc[r + 1] - 1.
// state_indices [rows] maps a row to its slot in the state tensors, -1 for a padding row; null: slot r for row r.
// Speculative: packed with state_indices [rows, draft_slots]; row r starts from the state in column
// num_accepted[r] - 1, and a row of at most `draft_slots` tokens stores the state after its token t in column t; -1
// stores nothing.
struct Rows {
    const int* context_lengths;
    const int* query_start_loc;
    const int* state_indices;
    const int* num_accepted;  // [rows], null unless speculative
    int draft_slots;          // 0 unless speculative
    int part;                 // speculative: 0 all rows, 1 those of at most `draft_slots` tokens, 2 the longer ones
    int rows;
    int time;  // dense: size of the token axis (1 in the decode form); packed: an upper bound of a row's tokens
};

// One row, resolved. Address of token t: base + row * row_stride + (first_token + t) * token_stride, where `row`
// is 0 in packed tensors and `first_token` is 0 in dense ones.
struct RowView {
    long long row;          // factor of the row stride
    long long first_token;  // factor of the token stride
    long long slot;         // of the state before the first token; negative: skip the row
    int length;             // valid tokens, 0..time
    int written;            // tokens of y that this row owns; those from `length` on are set to zero
};

__device__ __forceinline__ RowView row_view(const Rows& rows, int row) {
    RowView view;
    view.slot = row;
    if (rows.num_accepted) {
        const int accepted = rows.num_accepted[row];
        const int column = accepted < 1 ? 0 : (accepted > rows.draft_slots ? rows.draft_slots : accepted) - 1;
        view.slot = rows.state_indices[int64_t(row) * rows.draft_slots + column];
    } else if (rows.state_indices) {
        view.slot = rows.state_indices[row];
    }
    if (rows.query_start_loc) {
        const int begin = rows.query_start_loc[row];
        view.row = 0;
        view.first_token = begin;
        view.length = rows.query_start_loc[row + 1] - begin;
        view.written = view.length;
        if (rows.part && (view.length <= rows.draft_slots) != (rows.part == 1)) view.slot = -1;
    } else {
        const int length = rows.context_lengths ? rows.context_lengths[row] : rows.time;
        view.row = row;
        view.first_token = 0;
        view.length = length < 0 ? 0 : (length > rows.time ? rows.time : length);
        view.written = rows.time;
    }
    return view;
}

// Slot of the state after token `index` of a speculative row, negative: nowhere.
__device__ __forceinline__ int draft_slot(const Rows& rows, int row, int index) {
    return rows.state_indices[int64_t(row) * rows.draft_slots + index];
}
