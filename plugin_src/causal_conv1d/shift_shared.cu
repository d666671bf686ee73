// One token per row, of widths whose channels fill no power of two of bytes: as shift_update.cu, but the state of a
// warp's channels moves between memory and the shared memory as runs of 16 bytes, which whole sectors need.
//
// A thread's part of the state has an odd number of words where KERNEL is odd: the threads of a warp then read
// different banks.
//
// Macros: DATA_T; KERNEL (taps, not a power of two); ROWS (of a thread, all loaded before the first is used); SILU;
// THREADS.
// Grid: x covers the channels, y the rows in groups of ROWS. A row's state is a multiple of 16 bytes at such a
// multiple. A warp reads its part of a state before it writes any of it, so that the state may be updated in place.
#include "causal_conv1d/channels.cuh"
#include "causal_conv1d/params.cuh"
#include "common/launch.cuh"

namespace {

constexpr int C = 4 / sizeof(DATA_T);  // channels of a thread
constexpr int K = KERNEL;
// Threads of a multiprocessor, which registers are to allow. Before sm_90, the compiler spills to fit more of them.
#if __CUDA_ARCH__ < 900
constexpr int AT_ONCE = ROWS > 1 ? 768 : 1024;
#else
constexpr int AT_ONCE = 1024;
#endif
constexpr int WARP_BYTES = 32 * 4 * K;
constexpr int UNITS = WARP_BYTES / 16, UNITS_OF_LANE = (UNITS + 31) / 32;
using Columns = Run<DATA_T, C * K>;
using Channels = Run<DATA_T, C>;

// Runs of 16 bytes of a warp: lane l has l, l + 32, ... of those that are inside of the row.
struct Units {
    uint4 words[UNITS_OF_LANE];

    // of_row: those from the warp's first on.
    __device__ static __forceinline__ bool has(int i, int of_row) {
        const int unit = i * 32 + int(threadIdx.x) % 32;
        return unit < UNITS && unit < of_row;
    }
    __device__ __forceinline__ void load(const uint4* from, int of_row) {
#pragma unroll
        for (int i = 0; i < UNITS_OF_LANE; ++i)
            if (has(i, of_row)) words[i] = from[i * 32 + threadIdx.x % 32];
    }
    __device__ __forceinline__ void store(uint4* to, int of_row) const {
#pragma unroll
        for (int i = 0; i < UNITS_OF_LANE; ++i)
            if (has(i, of_row)) to[i * 32 + threadIdx.x % 32] = words[i];
    }
};

// Asks for what the first loads of the kernel wait for, as far as its place depends on no memory.
__device__ __forceinline__ void prefetch(const CausalConv1d& params, int first_channel, int of_row) {
    const int lane = threadIdx.x % 32, bytes = min(of_row * 16, WARP_BYTES);
    if (blockIdx.y == 0 && lane * 32 < bytes)
        prefetch_to_l2(static_cast<const char*>(params.weight) + first_channel * K * int(sizeof(DATA_T)) + lane * 32);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int64_t row = blockIdx.y * ROWS + r;
        if (row >= params.rows.rows) continue;
        if (!params.rows.state_indices && lane * 32 < bytes)
            prefetch_to_l2(reinterpret_cast<const char*>(static_cast<const DATA_T*>(params.state) +
                                                         row * params.state_stride + first_channel * K) + lane * 32);
        if (!params.rows.query_start_loc && lane < 4)
            prefetch_to_l2(reinterpret_cast<const char*>(static_cast<const DATA_T*>(params.x) +
                                                         row * params.x_row_stride + first_channel) + lane * 32);
        if (threadIdx.x == 0 && params.rows.context_lengths) prefetch_to_l2(params.rows.context_lengths + row);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE / THREADS)
    causal_conv1d_update_shared(const __grid_constant__ CausalConv1d params) {
    __shared__ uint4 shared[THREADS / 32][ROWS + 1][UNITS];
    let_later_kernels_start();
    const int warp = threadIdx.x / 32, first_channel = (blockIdx.x * (THREADS / 32) + warp) * 32 * C;
    const int channel = first_channel + threadIdx.x % 32 * C;
    const int of_row = (params.channels - first_channel) * K * int(sizeof(DATA_T)) / 16;
    if (int(blockIdx.x + gridDim.x * blockIdx.y) < params.prefetch_blocks && of_row > 0)
        prefetch(params, first_channel, of_row);
    wait_for_earlier_kernels();
    if (of_row <= 0) return;
    const bool is_inside = channel < params.channels;
    RowView views[ROWS];
    Units states[ROWS] = {};
    Channels x[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        views[r] = {0, 0, -1, 0, 0};
        x[r] = {};
        const int row = blockIdx.y * ROWS + r;
        if (row < params.rows.rows) views[r] = row_view(params.rows, row);
        if (views[r].slot < 0) continue;
        const DATA_T* state =
            static_cast<const DATA_T*>(params.state) + views[r].slot * params.state_stride + first_channel * K;
        states[r].load(reinterpret_cast<const uint4*>(state), of_row);
        // An empty packed row has no token: what lies at its place may be outside of x.
        if (views[r].written > 0 && is_inside)
            x[r].load(static_cast<const DATA_T*>(params.x) + views[r].row * params.x_row_stride +
                      views[r].first_token * params.x_token_stride + channel);
    }
    Units taps = {};
    Channels bias = {};
    taps.load(reinterpret_cast<const uint4*>(static_cast<const DATA_T*>(params.weight) + first_channel * K), of_row);
    if (params.bias && is_inside) bias.load(static_cast<const DATA_T*>(params.bias) + channel);
    taps.store(shared[warp][ROWS], UNITS);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) states[r].store(shared[warp][r], UNITS);
    __syncwarp();
    const int own = threadIdx.x % 32 * (C * K);
    Columns weight;
    weight.load(reinterpret_cast<const DATA_T*>(shared[warp][ROWS]) + own);
    Channels y[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        DATA_T* columns = reinterpret_cast<DATA_T*>(shared[warp][r]) + own;
        Columns state;
        state.load(columns);
        if (views[r].length > 0) push_column<DATA_T, C, K>(state, x[r]);
        y[r] = filter_columns<DATA_T, C, K, SILU>(state, weight, bias, params.bias, views[r].length > 0);
        state.store(columns);
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const RowView& view = views[r];
        if (view.slot < 0) continue;
        DATA_T* state_out =
            static_cast<DATA_T*>(params.state_out) + view.slot * params.state_out_stride + first_channel * K;
        states[r].load(shared[warp][r], UNITS);
        states[r].store(reinterpret_cast<uint4*>(state_out), of_row);
        if (view.written > 0 && is_inside)
            y[r].store(static_cast<DATA_T*>(params.y) + view.row * params.y_row_stride +
                       view.first_token * params.y_token_stride + channel);
    }
}
