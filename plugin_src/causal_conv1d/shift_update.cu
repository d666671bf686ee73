// One token a row: shift the state by one column and apply the filter to it.
//
// Macros: DATA_T; KERNEL (taps); CHANNELS (a thread's neighbouring channels: KERNEL * CHANNELS elements of state are
// one 16-byte access where KERNEL is a power of two); ROWS (rows of a thread, whose filter is loaded once); SILU;
// THREADS.
// Grid: x covers the channels, y the rows in groups of ROWS. The state is read and written once; a thread reads all
// that it needs of a row before it writes any of it, so that the state may be updated in place.
#include "causal_conv1d/channels.cuh"
#include "causal_conv1d/params.cuh"
#include "common/launch.cuh"
#include "common/math.cuh"

namespace {

// What the first loads of the kernel wait for, asked for while earlier kernels still run: the filter and the states of
// dense rows, whose places depend on no memory. The tokens too where few rows make latency the whole cost.
__device__ __forceinline__ void prefetch(const CausalConv1d& params, int first_row, int channel) {
    prefetch_to_l2(static_cast<const DATA_T*>(params.weight) + channel * KERNEL);
    if (params.rows.state_indices) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int64_t row = first_row + r;
        if (row < params.rows.rows)
            prefetch_to_l2(static_cast<const DATA_T*>(params.state) + row * params.state_stride + channel * KERNEL);
    }
    if (gridDim.y == 1 && !params.rows.query_start_loc) prefetch_to_l2(static_cast<const DATA_T*>(params.x) + channel);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    causal_conv1d_update(const __grid_constant__ CausalConv1d params) {
    constexpr int C = CHANNELS;
    constexpr int K = KERNEL;
    const int channel = (blockIdx.x * blockDim.x + threadIdx.x) * C;
    const int first_row = blockIdx.y * ROWS;
    let_later_kernels_start();
    if (channel < params.channels) prefetch(params, first_row, channel);
    wait_for_earlier_kernels();
    if (channel >= params.channels) return;

    RowView views[ROWS];
    Run<DATA_T, C> x[ROWS];
    Run<DATA_T, C * K> state[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = first_row + r;
        views[r].slot = -1;
        if (row < params.rows.rows) views[r] = row_view(params.rows, row);
        if (views[r].slot < 0) continue;
        state[r].load(static_cast<const DATA_T*>(params.state) + views[r].slot * params.state_stride + channel * K);
        // An empty packed row has no token: what lies at its place may be outside of x.
        if (views[r].written > 0)
            x[r].load(static_cast<const DATA_T*>(params.x) + views[r].row * params.x_row_stride +
                      views[r].first_token * params.x_token_stride + channel);
    }
    Run<DATA_T, C * K> weight;
    weight.load(static_cast<const DATA_T*>(params.weight) + channel * K);
    Run<DATA_T, C> bias;
    if (params.bias) bias.load(static_cast<const DATA_T*>(params.bias) + channel);

#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const RowView& view = views[r];
        if (view.slot < 0) continue;
        Run<DATA_T, C> y;
        if (view.length > 0) push_column<DATA_T, C, K>(state[r], x[r]);
#pragma unroll
        for (int c = 0; c < C; c++) {
            float sum = params.bias ? to_float(bias.data[c]) : 0.0f;
#pragma unroll
            for (int j = 0; j < K; j++)
                sum = fmaf(to_float(weight.data[c * K + j]), to_float(state[r].data[c * K + j]), sum);
            y.data[c] = from_float<DATA_T>(view.length > 0 ? (SILU ? silu(sum) : sum) : 0.0f);
        }
        state[r].store(static_cast<DATA_T*>(params.state_out) + view.slot * params.state_out_stride + channel * K);
        if (view.written > 0)
            y.store(static_cast<DATA_T*>(params.y) + view.row * params.y_row_stride +
                    view.first_token * params.y_token_stride + channel);
    }
}
