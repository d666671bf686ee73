// Which tokens and which state slot belong to a batch row, for dense and for packed tensors.
#pragma once

#include "common/integers.cuh"

// Dense: tensors [batch, time, ...]; context_lengths [batch] counts the valid tokens; query_start_loc is null.
// Packed: tensors [tokens, ...]; row r has the tokens query_start_loc[r] to query_start_loc[r + 1] - 1.
// state_indices [rows] maps a row to its slot in the state tensors, -1 for a padding row; null: slot r for row r.
struct Rows {
    const int* context_lengths;
    const int* query_start_loc;
    const int* state_indices;
    int rows;
    int time;  // dense: size of the token axis (1 in the decode form); packed: an upper bound of a row's tokens
};

// One row, resolved. Address of token t: base + row * row_stride + (first_token + t) * token_stride, where `row`
// is 0 in packed tensors and `first_token` is 0 in dense ones.
struct RowView {
    long long row;          // factor of the row stride
    long long first_token;  // factor of the token stride
    long long slot;         // index into the state tensors; negative: skip the row
    int length;             // valid tokens, 0..time
    int written;            // tokens of y that this row owns; those from `length` on are set to zero
};

__device__ __forceinline__ RowView row_view(const Rows& rows, int row) {
    RowView view;
    view.slot = rows.state_indices ? rows.state_indices[row] : row;
    if (rows.query_start_loc) {
        const int begin = rows.query_start_loc[row];
        view.row = 0;
        view.first_token = begin;
        view.length = rows.query_start_loc[row + 1] - begin;
        view.written = view.length;
    } else {
        const int length = rows.context_lengths ? rows.context_lengths[row] : rows.time;
        view.row = row;
        view.first_token = 0;
        view.length = length < 0 ? 0 : (length > rows.time ? rows.time : length);
        view.written = rows.time;
    }
    return view;
}
