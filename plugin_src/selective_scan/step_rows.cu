// At most one token in each row: a thread has the same channel in all rows of its block, and so reads A once for them.
//
// The block first finds where its rows lie, and brings their B and C to shared memory. ROWS rows are loaded while the
// ROWS before them are computed. What all lanes of a channel need of a row (its time step, x) one of them computes,
// which also gets the sum over the lanes and writes y.
//
// Macros: those of channel_state.cuh; THREADS; ROWS (a power of two); BLOCK_ROWS (the most rows of a block, at most
// THREADS); BLOCKS (of a multiprocessor, which registers are to allow). Grid: x covers the channels of a group, y the
// groups, z the rows in runs of block_rows. A thread writes only the elements of the state that it has read, so that it
// may be updated in place.
#include "selective_scan/channel_state.cuh"

namespace {

constexpr int CHANNELS = THREADS / LANES;
constexpr int OWN_ROWS = ROWS > LANES ? ROWS / LANES : 1;      // that a lane computes the time step of, and y
constexpr int LANES_OF_ROW = LANES > ROWS ? LANES / ROWS : 1;  // that compute the same

// Offsets of a row's elements, of channel 0.
struct RowPlace {
    int64_t state, x, dt, y, state_out;
    bool is_skipped, has_token, has_output;

    __device__ __forceinline__ void find(const SelectiveScan& params, const RowView& view) {
        is_skipped = view.slot < 0;
        has_token = !is_skipped && view.length > 0;
        has_output = !is_skipped && view.written > 0;
        state = view.slot * params.state_slot;
        state_out = view.slot * params.state_out_slot;
        x = view.row * params.x_row + view.first_token * params.x_token;
        dt = view.row * params.dt_row + view.first_token * params.dt_token;
        y = view.row * params.y_row + view.first_token * params.y_token;
    }
};

struct Shared {
    alignas(16) float B[BLOCK_ROWS][STATE_SIZE];
    alignas(16) float C[BLOCK_ROWS][STATE_SIZE];
    RowPlace places[BLOCK_ROWS];

    __device__ __forceinline__ void load_groups(const SelectiveScan& params, int begin, int count) {
        for (int i = threadIdx.x; i < count * STATE_SIZE; i += THREADS) {
            const int r = i / STATE_SIZE, n = i % STATE_SIZE;
            if (!places[r].has_token) continue;
            const RowView view = row_view(params.rows, begin + r);
            const int64_t group = blockIdx.y;
            B[r][n] = to_float(static_cast<const DATA_T*>(params.B)[view.row * params.B_row +
                                                                    view.first_token * params.B_token +
                                                                    group * params.B_group + n]);
            C[r][n] = to_float(static_cast<const DATA_T*>(params.C)[view.row * params.C_row +
                                                                    view.first_token * params.C_token +
                                                                    group * params.C_group + n]);
        }
    }
};

// What a thread reads of ROWS rows; [i] of x and dt is its own row i.
struct RowInputs {
    StoredState states[ROWS];
    DATA_T x[OWN_ROWS], dt[OWN_ROWS];

    __device__ __forceinline__ void load(const SelectiveScan& params, const Shared& shared, int first, int count,
                                         int channel, int lane) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const RowPlace& place = shared.places[min(first + r, count - 1)];
            if (!place.is_skipped)
                states[r].load(static_cast<const STATE_T*>(params.state) + place.state, channel, lane);
        }
#pragma unroll
        for (int i = 0; i < OWN_ROWS; ++i) {
            const RowPlace& place = shared.places[min(first + lane / LANES_OF_ROW * OWN_ROWS + i, count - 1)];
            x[i] = dt[i] = from_float<DATA_T>(0.0f);
            if (!place.has_token) continue;
            x[i] = static_cast<const DATA_T*>(params.x)[place.x + channel];
            dt[i] = static_cast<const DATA_T*>(params.dt)[place.dt + channel];
        }
    }
};

// Adds over the lanes of a channel. In the end, sums[i] of a lane is that of its own row i.
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
    __shared__ Shared shared;
    wait_for_earlier_kernels();
    let_later_kernels_start();
    const int begin = blockIdx.z * params.block_rows, count = min(params.block_rows, params.rows.rows - begin);
    if (int(threadIdx.x) < count)
        shared.places[threadIdx.x].find(params, row_view(params.rows, begin + threadIdx.x));
    // Threads past the group's last channel repeat its computation, because sums need all lanes of a warp.
    const int found = blockIdx.x * CHANNELS + threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const int channel = blockIdx.y * params.channels_per_group + min(found, params.channels_per_group - 1);
    const bool is_owner = found < params.channels_per_group;
    const int own = lane / LANES_OF_ROW * OWN_ROWS;
    __syncthreads();
    RowInputs next;
    next.load(params, shared, 0, count, channel, lane);
    ChannelState state;
    state.load_rates(params, channel, lane);
    const BIAS_T bias = static_cast<const BIAS_T*>(params.dt_bias)[channel];
    const float skip = to_float(static_cast<const D_T*>(params.D)[channel]);
    shared.load_groups(params, begin, count);
    __syncthreads();

#pragma unroll 1
    for (int first = 0; first < count; first += ROWS) {
        RowInputs inputs = next;
        if (first + ROWS < count) next.load(params, shared, first + ROWS, count, channel, lane);
        float own_step[OWN_ROWS], own_scaled[OWN_ROWS], sums[ROWS];
#pragma unroll
        for (int i = 0; i < OWN_ROWS; ++i) {
            own_step[i] = time_step(params, inputs.dt[i], bias);
            own_scaled[i] = own_step[i] * to_float(inputs.x[i]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int from = r / OWN_ROWS * LANES_OF_ROW, index = min(first + r, count - 1);
            const float step = __shfl_sync(0xffffffffu, own_step[r % OWN_ROWS], from, LANES);
            const float scaled = __shfl_sync(0xffffffffu, own_scaled[r % OWN_ROWS], from, LANES);
            sums[r] = 0.0f;
            const RowPlace& place = shared.places[index];
            if (place.is_skipped || first + r >= count) continue;
            if (place.has_token) {
                float B[ELEMENTS], C[ELEMENTS];
#pragma unroll
                for (int e = 0; e < ELEMENTS; ++e) {
                    B[e] = shared.B[index][element(lane, e)];
                    C[e] = shared.C[index][element(lane, e)];
                }
                state.unpack(inputs.states[r]);
                sums[r] = state.update(step, scaled, B, C);
                inputs.states[r] = state.packed();
            }
            if (is_owner)
                inputs.states[r].store(static_cast<STATE_T*>(params.state_out) + place.state_out, channel, lane);
        }
        reduce_over_lanes(sums, lane);
#pragma unroll
        for (int i = 0; i < OWN_ROWS; ++i) {
            const RowPlace& place = shared.places[min(first + own + i, count - 1)];
            if (is_owner && lane % LANES_OF_ROW == 0 && first + own + i < count && place.has_output)
                static_cast<DATA_T*>(params.y)[place.y + channel] =
                    from_float<DATA_T>(fmaf(skip, to_float(inputs.x[i]), sums[i]));
        }
    }
}
