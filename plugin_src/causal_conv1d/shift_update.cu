// One token per row: shift the state by one column and apply the filter to it.
//
// Macros: DATA_T; KERNEL (taps); CHANNELS (a thread's neighbouring channels: KERNEL * CHANNELS elements of state are
// one 16-byte access where KERNEL is a power of two); SILU; THREADS.
// Grid: x covers the channels, y the rows. The state is read and written once; a thread reads all that it needs before
// it writes any of it, so that the state may be updated in place.
#include "causal_conv1d/channels.cuh"
#include "causal_conv1d/params.cuh"
#include "common/launch.cuh"

namespace {

// Asks for what the first loads of the kernel wait for, as far as its place depends on no memory. The filter is the
// same for all rows.
__device__ __forceinline__ void prefetch(const CausalConv1d& params, int channel) {
    const int64_t row = blockIdx.y;
    if (row == 0) {
        prefetch_to_l2(static_cast<const DATA_T*>(params.weight) + channel * KERNEL);
        if (params.bias) prefetch_to_l2(static_cast<const DATA_T*>(params.bias) + channel);
    }
    if (!params.rows.state_indices)
        prefetch_to_l2(static_cast<const DATA_T*>(params.state) + row * params.state_stride + channel * KERNEL);
    if (!params.rows.query_start_loc) {
        prefetch_to_l2(static_cast<const DATA_T*>(params.x) + row * params.x_row_stride + channel);
        if (threadIdx.x == 0 && params.rows.context_lengths) prefetch_to_l2(params.rows.context_lengths + row);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    causal_conv1d_update(const __grid_constant__ CausalConv1d params) {
    constexpr int C = CHANNELS;
    constexpr int K = KERNEL;
    const int channel = (blockIdx.x * blockDim.x + threadIdx.x) * C;
    const bool early = int(blockIdx.x + gridDim.x * blockIdx.y) < params.prefetch_blocks;
    let_later_kernels_start();
    if (early && channel < params.channels) prefetch(params, channel);
    wait_for_earlier_kernels();
    if (channel >= params.channels) return;
    const RowView view = row_view(params.rows, blockIdx.y);
    if (view.slot < 0) return;

    Run<DATA_T, C * K> state, weight;
    Run<DATA_T, C> x = {}, bias = {};
    state.load(static_cast<const DATA_T*>(params.state) + view.slot * params.state_stride + channel * K);
    // An empty packed row has no token: what lies at its place may be outside of x.
    if (view.written > 0)
        x.load(static_cast<const DATA_T*>(params.x) + view.row * params.x_row_stride +
               view.first_token * params.x_token_stride + channel);
    weight.load(static_cast<const DATA_T*>(params.weight) + channel * K);
    if (params.bias) bias.load(static_cast<const DATA_T*>(params.bias) + channel);

    if (view.length > 0) push_column<DATA_T, C, K>(state, x);
    const Run<DATA_T, C> y = filter_columns<DATA_T, C, K, SILU>(state, weight, bias, params.bias, view.length > 0);
    state.store(static_cast<DATA_T*>(params.state_out) + view.slot * params.state_out_stride + channel * K);
    if (view.written > 0)
        y.store(static_cast<DATA_T*>(params.y) + view.row * params.y_row_stride +
                view.first_token * params.y_token_stride + channel);
}
