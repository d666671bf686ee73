// Draft tokens of a speculative row, one after another: each shifts the state by one column, and has the state
// after it stored in its own slot.
//
// Macros: DATA_T; KERNEL (taps); CHANNELS (a thread's neighbouring channels); STEP (tokens loaded before the first of
// them is used); SILU; THREADS. Grid: x covers the channels, y the rows. The state is read once, before anything of it
// is written, so that a token may be stored over the state that the row began with.
#include "causal_conv1d/channels.cuh"
#include "causal_conv1d/params.cuh"
#include "common/launch.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    causal_conv1d_drafts(const __grid_constant__ CausalConv1d params) {
    constexpr int C = CHANNELS;
    constexpr int K = KERNEL;
    const int channel = (blockIdx.x * blockDim.x + threadIdx.x) * C;
    const int row = blockIdx.y;
    let_later_kernels_start();
    if (channel < params.channels) prefetch_to_l2(static_cast<const DATA_T*>(params.weight) + channel * K);
    wait_for_earlier_kernels();
    if (channel >= params.channels) return;
    const RowView view = row_view(params.rows, row);
    if (view.slot < 0 || view.length == 0) return;

    Run<DATA_T, C * K> state, weight;
    Run<DATA_T, C> bias;
    state.load(static_cast<const DATA_T*>(params.state) + view.slot * params.state_stride + channel * K);
    weight.load(static_cast<const DATA_T*>(params.weight) + channel * K);
    if (params.bias) bias.load(static_cast<const DATA_T*>(params.bias) + channel);
    const DATA_T* x = static_cast<const DATA_T*>(params.x) + view.first_token * params.x_token_stride + channel;
    DATA_T* y = static_cast<DATA_T*>(params.y) + view.first_token * params.y_token_stride + channel;
    for (int begin = 0; begin < view.length; begin += STEP) {
        Run<DATA_T, C> tokens[STEP];
        int slots[STEP];
#pragma unroll
        for (int i = 0; i < STEP; i++) {
            slots[i] = draft_slot(params.rows, row, min(begin + i, view.length - 1));
            if (begin + i < view.length) tokens[i].load(x + (begin + i) * params.x_token_stride);
        }
#pragma unroll
        for (int i = 0; i < STEP; i++) {
            if (begin + i >= view.length) continue;
            push_column<DATA_T, C, K>(state, tokens[i]);
            filter_columns<DATA_T, C, K, SILU>(state, weight, bias, params.bias)
                .store(y + (begin + i) * params.y_token_stride);
            if (slots[i] >= 0)
                state.store(static_cast<DATA_T*>(params.state_out) + slots[i] * params.state_out_stride + channel * K);
        }
    }
}
