// At most one token in each row: a thread has the same channel in all rows of its block, and so reads A once for them.
//
// The block computes once where each row lies. ROWS rows are loaded before the first of them is computed. What all lanes of a
// channel need of a row (its time step, x) one of them computes, which also gets the sum over the lanes and writes y.
//
// Macros: those of channel_state.cuh; THREADS; ROWS (a power of two); BLOCKS (of a multiprocessor, which registers are to
// allow). Grid: x covers the channels, y the rows in runs of block_rows, at most THREADS. A thread writes only the elements
// of the state that it has read, so that it may be updated in place.
#include "selective_scan/channel_state.cuh"

namespace {

constexpr int OWN_ROWS = ROWS > LANES ? ROWS / LANES : 1;      // that a lane computes the time step of, and y
constexpr int LANES_OF_ROW = LANES > ROWS ? LANES / ROWS : 1;  // that compute the same
using GroupRun = Access<DATA_T, GROUP_ACCESS>;

// Offsets of a row's elements, of channel 0 and group 0.
struct RowPlace {
    int64_t state, B, C, x, dt, y, state_out;
    bool is_skipped, has_token, has_output;

    __device__ __forceinline__ void find(const SelectiveScan& params, int index) {
        const RowView view = row_view(params.rows, index);
        is_skipped = view.slot < 0;
        has_token = !is_skipped && view.length > 0;
        has_output = !is_skipped && view.written > 0;
        state = view.slot * params.state_slot;
        state_out = view.slot * params.state_out_slot;
        B = view.row * params.B_row + view.first_token * params.B_token;
        C = view.row * params.C_row + view.first_token * params.C_token;
        x = view.row * params.x_row + view.first_token * params.x_token;
        dt = view.row * params.dt_row + view.first_token * params.dt_token;
        y = view.row * params.y_row + view.first_token * params.y_token;
    }
};

// Adds over the lanes of a channel. In the end, sums[i] of a lane is that of row lane / LANES_OF_ROW * OWN_ROWS + i.
template <int COUNT = ROWS, int APART = LANES / 2>
__device__ __forceinline__ void reduce_over_lanes(float (&sums)[ROWS], int lane) {
    if constexpr (APART > 0) {
        if constexpr (COUNT > 1) {
            const bool upper = lane & APART;
#pragma unroll
            for (int i = 0; i < COUNT / 2; ++i) {
                const float given = upper ? sums[i] : sums[i + COUNT / 2];
                sums[i] = (upper ? sums[i + COUNT / 2] : sums[i]) + __shfl_xor_sync(0xffffffffu, given, APART);
            }
            reduce_over_lanes<COUNT / 2, APART / 2>(sums, lane);
        } else {
            sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], APART);
            reduce_over_lanes<1, APART / 2>(sums, lane);
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    selective_scan_step_rows(const __grid_constant__ SelectiveScan params) {
    __shared__ RowPlace places[THREADS];
    wait_for_earlier_kernels();
    let_later_kernels_start();
    const int begin = blockIdx.y * params.block_rows, count = min(params.block_rows, params.rows.rows - begin);
    if (int(threadIdx.x) < count) places[threadIdx.x].find(params, begin + threadIdx.x);
    // Threads past the last channel repeat its computation, because sums need all lanes of a warp.
    const int found = (blockIdx.x * THREADS + threadIdx.x) / LANES, lane = threadIdx.x % LANES;
    const int channel = min(found, params.channels - 1), own = lane / LANES_OF_ROW * OWN_ROWS;
    const bool is_owner = found < params.channels;
    ChannelState state;
    state.load_rates(params, channel, lane);
    const BIAS_T bias = static_cast<const BIAS_T*>(params.dt_bias)[channel];
    const float skip = to_float(static_cast<const D_T*>(params.D)[channel]);
    const int group = channel / params.channels_per_group;
    const DATA_T* B_group = static_cast<const DATA_T*>(params.B) + group * params.B_group;
    const DATA_T* C_group = static_cast<const DATA_T*>(params.C) + group * params.C_group;
    __syncthreads();

#pragma unroll 1
    for (int first = 0; first < count; first += ROWS) {
        StoredState stored[ROWS];
        GroupRun B_runs[ROWS][ELEMENTS / GROUP_ACCESS], C_runs[ROWS][ELEMENTS / GROUP_ACCESS];
        DATA_T x[OWN_ROWS], dt[OWN_ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const RowPlace& place = places[min(first + r, count - 1)];
            if (place.is_skipped) continue;
            stored[r].load(static_cast<const STATE_T*>(params.state) + place.state, channel, lane);
            if (!place.has_token) continue;
#pragma unroll
            for (int e = 0; e < ELEMENTS; e += GROUP_ACCESS) {
                B_runs[r][e / GROUP_ACCESS].load(B_group + place.B + element(lane, e));
                C_runs[r][e / GROUP_ACCESS].load(C_group + place.C + element(lane, e));
            }
        }
#pragma unroll
        for (int i = 0; i < OWN_ROWS; ++i) {
            const RowPlace& place = places[min(first + own + i, count - 1)];
            x[i] = dt[i] = from_float<DATA_T>(0.0f);  // set without a token too: softplus branches on it
            if (!place.has_token) continue;
            x[i] = static_cast<const DATA_T*>(params.x)[place.x + channel];
            dt[i] = static_cast<const DATA_T*>(params.dt)[place.dt + channel];
        }

        float own_step[OWN_ROWS], own_scaled[OWN_ROWS], sums[ROWS];
#pragma unroll
        for (int i = 0; i < OWN_ROWS; ++i) {
            own_step[i] = time_step(params, dt[i], bias);
            own_scaled[i] = own_step[i] * to_float(x[i]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int from = r / OWN_ROWS * LANES_OF_ROW;
            const float step = __shfl_sync(0xffffffffu, own_step[r % OWN_ROWS], from, LANES);
            const float scaled = __shfl_sync(0xffffffffu, own_scaled[r % OWN_ROWS], from, LANES);
            sums[r] = 0.0f;
            const RowPlace& place = places[min(first + r, count - 1)];
            if (place.is_skipped || first + r >= count) continue;
            if (place.has_token) {
                float B[ELEMENTS], C[ELEMENTS];
#pragma unroll
                for (int e = 0; e < ELEMENTS; e += GROUP_ACCESS) {
                    B_runs[r][e / GROUP_ACCESS].unpack(B + e);
                    C_runs[r][e / GROUP_ACCESS].unpack(C + e);
                }
                state.unpack(stored[r]);
                sums[r] = state.update(step, scaled, B, C);
                stored[r] = state.packed();
            }
            if (is_owner) stored[r].store(static_cast<STATE_T*>(params.state_out) + place.state_out, channel, lane);
        }
        reduce_over_lanes(sums, lane);
#pragma unroll
        for (int i = 0; i < OWN_ROWS; ++i) {
            const RowPlace& place = places[min(first + own + i, count - 1)];
            if (is_owner && lane % LANES_OF_ROW == 0 && first + own + i < count && place.has_output)
                static_cast<DATA_T*>(params.y)[place.y + channel] = from_float<DATA_T>(fmaf(skip, to_float(x[i]), sums[i]));
        }
    }
}
