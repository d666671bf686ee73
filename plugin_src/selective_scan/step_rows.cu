// At most one token in each of ROWS rows: a thread has the same channel in all of them, and so reads A once for them.
//
// Macros: those of channel_state.cuh; THREADS; ROWS. Grid: x covers the channels, y the rows in groups of ROWS. A thread
// writes only the elements of the state that it has read, so that it may be updated in place.
#include "selective_scan/token.cuh"

namespace {

// What a thread reads of one row. All rows are loaded before the first is computed.
struct RowInputs {
    RowView view;
    StoredState state;
    Token token;

    __device__ __forceinline__ void load(const SelectiveScan& params, int row, int channel, int lane) {
        view = {0, 0, -1, 0, 0};
        token.x = token.dt = from_float<DATA_T>(0.0f);  // set without a token too: softplus branches on it
        if (row >= params.rows.rows) return;
        view = row_view(params.rows, row);
        if (view.slot < 0) return;
        state.load(static_cast<const STATE_T*>(params.state) + view.slot * params.state_slot, channel, lane);
        if (view.length < 1) return;
        token.load(params, view, 0, channel, lane);
    }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    selective_scan_step_rows(const __grid_constant__ SelectiveScan params) {
    wait_for_earlier_kernels();
    let_later_kernels_start();
    // Threads past the last channel repeat its computation, because sums need all lanes of a warp.
    const int found = (blockIdx.x * THREADS + threadIdx.x) / LANES, lane = threadIdx.x % LANES;
    const int channel = min(found, params.channels - 1);
    const bool is_owner = found < params.channels;
    RowInputs rows[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) rows[r].load(params, blockIdx.y * ROWS + r, channel, lane);

    ChannelState state;
    state.load_rates(params, channel, lane);
    const BIAS_T bias = static_cast<const BIAS_T*>(params.dt_bias)[channel];
    const float skip = to_float(static_cast<const D_T*>(params.D)[channel]);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        RowInputs& row = rows[r];
        if (row.view.slot < 0) continue;
        float sum = 0.0f;
        if (row.view.length > 0) {
            float B[ELEMENTS], C[ELEMENTS];
#pragma unroll
            for (int e = 0; e < ELEMENTS; e += GROUP_ACCESS) {
                row.token.B[e / GROUP_ACCESS].unpack(B + e);
                row.token.C[e / GROUP_ACCESS].unpack(C + e);
            }
            state.unpack(row.state);
            const float step = time_step(params, row.token.dt, bias), x = to_float(row.token.x);
            sum = fmaf(skip, x, state.update(step, step * x, B, C));
            row.state = state.packed();
        }
        if (!is_owner) continue;
        row.state.store(static_cast<STATE_T*>(params.state_out) + row.view.slot * params.state_out_slot, channel, lane);
        if (lane == 0 && row.view.written > 0)
            static_cast<DATA_T*>(params.y)[row.view.row * params.y_row + row.view.first_token * params.y_token +
                                           channel] = from_float<DATA_T>(sum);
    }
}
