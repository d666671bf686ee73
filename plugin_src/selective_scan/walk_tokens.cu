// At most a few tokens per row: the state stays in registers from its one read to the write after the last token.
//
// Macros: those of channel_state.cuh; THREADS; DRAFTS (rows of a speculative call: the state after each token goes to a
// slot of that token, rounded as a call for each token would round it). Grid: x covers the channels, y the rows. A
// thread writes only the elements of the state that it has read, so that it may be updated in place.
#include "selective_scan/token.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    selective_scan_walk_tokens(const __grid_constant__ SelectiveScan params) {
    wait_for_earlier_kernels();
    let_later_kernels_start();
    const RowView view = row_view(params.rows, blockIdx.y);
    if (view.slot < 0 || (DRAFTS && view.length == 0)) return;

    // Threads past the last channel repeat its computation, because sums need all lanes of a warp.
    const int found = (blockIdx.x * THREADS + threadIdx.x) / LANES, lane = threadIdx.x % LANES;
    const int channel = min(found, params.channels - 1);
    const bool is_owner = found < params.channels;
    ChannelState state;
    StoredState stored;
    stored.load(static_cast<const STATE_T*>(params.state) + view.slot * params.state_slot, channel, lane);
    state.load_rates(params, channel, lane);
    state.unpack(stored);
    STATE_T* out = static_cast<STATE_T*>(params.state_out);
    const BIAS_T bias = static_cast<const BIAS_T*>(params.dt_bias)[channel];
    const float skip = to_float(static_cast<const D_T*>(params.D)[channel]);
    DATA_T* y = static_cast<DATA_T*>(params.y) + view.row * params.y_row + channel;

    Token next = {};  // set without a token too
    if (view.length > 0) next.load(params, view, 0, channel, lane);
    for (int t = 0; t < view.length; ++t) {
        const Token token = next;
        if (t + 1 < view.length) next.load(params, view, t + 1, channel, lane);
        float B[ELEMENTS], C[ELEMENTS];
#pragma unroll
        for (int e = 0; e < ELEMENTS; e += GROUP_ACCESS) {
            token.B[e / GROUP_ACCESS].unpack(B + e);
            token.C[e / GROUP_ACCESS].unpack(C + e);
        }
        const float step = time_step(params, token.dt, bias), x = to_float(token.x);
        float sum = state.update(step, step * x, B, C);
#pragma unroll
        for (int apart = LANES / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
        if (is_owner && lane == 0) y[(view.first_token + t) * params.y_token] = from_float<DATA_T>(fmaf(skip, x, sum));
        if (DRAFTS) {
            const int slot = draft_slot(params.rows, blockIdx.y, t);
            if (is_owner && slot >= 0) state.packed().store(out + slot * params.state_out_slot, channel, lane);
#pragma unroll
            for (int e = 0; e < ELEMENTS; ++e) state.h[e] = to_float(from_float<STATE_T>(state.h[e]));
        }
    }
    if (!is_owner || DRAFTS) return;
    state.packed().store(out + view.slot * params.state_out_slot, channel, lane);
    for (int t = view.length; t < view.written; ++t)
        if (lane == 0) y[(view.first_token + t) * params.y_token] = from_float<DATA_T>(0.0f);
}
