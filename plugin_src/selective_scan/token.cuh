// What a thread reads of one token.
#pragma once

#include "selective_scan/channel_state.cuh"

namespace {

// Loading is separate from computing, so that loads start early.
struct Token {
    DATA_T x, dt;
    Access<DATA_T, GROUP_ACCESS> B[ELEMENTS / GROUP_ACCESS], C[ELEMENTS / GROUP_ACCESS];

    __device__ __forceinline__ void load(const SelectiveScan& params, const RowView& view, int token, int channel,
                                         int lane) {
        const int64_t at = view.first_token + token, group = channel / params.channels_per_group;
        x = static_cast<const DATA_T*>(params.x)[view.row * params.x_row + at * params.x_token + channel];
        dt = static_cast<const DATA_T*>(params.dt)[view.row * params.dt_row + at * params.dt_token + channel];
        const DATA_T* B_row = static_cast<const DATA_T*>(params.B) + view.row * params.B_row + at * params.B_token;
        const DATA_T* C_row = static_cast<const DATA_T*>(params.C) + view.row * params.C_row + at * params.C_token;
#pragma unroll
        for (int e = 0; e < ELEMENTS; e += GROUP_ACCESS) {
            B[e / GROUP_ACCESS].load(B_row + group * params.B_group + element(lane, e));
            C[e / GROUP_ACCESS].load(C_row + group * params.C_group + element(lane, e));
        }
    }
};

}  // namespace
