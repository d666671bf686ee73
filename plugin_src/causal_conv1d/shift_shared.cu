// One token per row, of widths whose channels fill no power of two of bytes: as shift_update.cu, but the state of a warp's
// channels moves between memory and the shared memory as runs of 16 bytes, which whole sectors need.
//
// A thread's part of the state has an odd number of words where KERNEL is odd: the threads of a warp then read different banks.
//
// Macros: DATA_T; KERNEL (taps, not a power of two); ROWS (of a thread, all loaded before the first is used); SILU; THREADS.
// Grid: x covers the channels, y the rows in groups of ROWS. A row's state is a multiple of 16 bytes at such a multiple. A warp
// reads its part of a state before it writes any of it, so that the state may be updated in place.
#include "causal_conv1d/channels.cuh"
#include "causal_conv1d/params.cuh"
#include "common/launch.cuh"

namespace {

constexpr int C = 4 / sizeof(DATA_T);  // channels of a thread
constexpr int K = KERNEL;
constexpr int LEAST_BLOCKS = ROWS > 2 ? 5 : 8;  // of a multiprocessor, which registers are to allow
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

// The columns of this thread from the warp's runs, through the warp's shared memory, and back.
__device__ __forceinline__ Columns columns_of(const Units& units, uint4* shared) {
    __syncwarp();
    units.store(shared, UNITS);
    __syncwarp();
    Columns columns;
    columns.load(reinterpret_cast<const DATA_T*>(shared) + threadIdx.x % 32 * (C * K));
    return columns;
}
__device__ __forceinline__ Units units_of(const Columns& columns, uint4* shared) {
    columns.store(reinterpret_cast<DATA_T*>(shared) + threadIdx.x % 32 * (C * K));  // what this thread alone has read
    __syncwarp();
    Units units;
    units.load(shared, UNITS);
    return units;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, LEAST_BLOCKS)
    causal_conv1d_update_shared(const __grid_constant__ CausalConv1d params) {
    __shared__ uint4 shared[THREADS / 32][UNITS];
    let_later_kernels_start();
    wait_for_earlier_kernels();
    const int warp = threadIdx.x / 32, first_channel = (blockIdx.x * (THREADS / 32) + warp) * 32 * C;
    if (first_channel >= params.channels) return;
    const int channel = first_channel + threadIdx.x % 32 * C;
    const int of_row = (params.channels - first_channel) * K * int(sizeof(DATA_T)) / 16;
    const bool is_inside = channel < params.channels;
    RowView views[ROWS];
    Units states[ROWS];
    Channels x[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        views[r] = {0, 0, -1, 0, 0};
        x[r] = {};
        const int row = blockIdx.y * ROWS + r;
        if (row < params.rows.rows) views[r] = row_view(params.rows, row);
        if (views[r].slot < 0) continue;
        const DATA_T* state = static_cast<const DATA_T*>(params.state) + views[r].slot * params.state_stride + first_channel * K;
        states[r].load(reinterpret_cast<const uint4*>(state), of_row);
        // An empty packed row has no token: what lies at its place may be outside of x.
        if (views[r].written > 0 && is_inside)
            x[r].load(static_cast<const DATA_T*>(params.x) + views[r].row * params.x_row_stride +
                      views[r].first_token * params.x_token_stride + channel);
    }
    Units taps;
    Channels bias = {};
    taps.load(reinterpret_cast<const uint4*>(static_cast<const DATA_T*>(params.weight) + first_channel * K), of_row);
    if (params.bias && is_inside) bias.load(static_cast<const DATA_T*>(params.bias) + channel);
    const Columns weight = columns_of(taps, shared[warp]);

#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const RowView& view = views[r];
        if (view.slot < 0) continue;
        Columns state = columns_of(states[r], shared[warp]);
        if (view.length > 0) push_column<DATA_T, C, K>(state, x[r]);
        const Channels y = filter_columns<DATA_T, C, K, SILU>(state, weight, bias, params.bias, view.length > 0);
        DATA_T* state_out = static_cast<DATA_T*>(params.state_out) + view.slot * params.state_out_stride + first_channel * K;
        units_of(state, shared[warp]).store(reinterpret_cast<uint4*>(state_out), of_row);
        if (view.written > 0 && is_inside)
            y.store(static_cast<DATA_T*>(params.y) + view.row * params.y_row_stride +
                    view.first_token * params.y_token_stride + channel);
    }
}
