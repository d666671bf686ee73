// Many tokens per row: a block walks through TILE tokens at a time of its channels. Their inputs come through shared memory,
// where each time step is computed once for all lanes; those of the next tile are loaded while the block computes.
//
// Macros: those of channel_state.cuh; THREADS; TILE. Grid: x covers the channels of a group, y the groups, z the rows. A
// thread writes only the elements of the state that it has read, so that it may be updated in place.
#include "selective_scan/channel_state.cuh"

namespace {

constexpr int CHANNELS = THREADS / LANES;
constexpr int INPUTS = (TILE * CHANNELS + THREADS - 1) / THREADS;      // of x and of dt, by thread
constexpr int GROUP_INPUTS = (TILE * STATE_SIZE + THREADS - 1) / THREADS;  // of B and of C
// Tokens whose inputs are loaded at a time; a multiple of them is a tile.
constexpr int TOGETHER = ELEMENTS <= 4 ? 4 : ELEMENTS <= 8 ? 2 : 1;
static_assert(TILE * CHANNELS % THREADS == 0, "each thread has as many inputs");

struct Shared {
    float step[TILE][CHANNELS];
    float scaled[TILE][CHANNELS];  // the time step times x
    float skip[TILE][CHANNELS];    // D times x
    float sum[TILE][CHANNELS];     // C times the state
    float B[TILE][STATE_SIZE];
    float C[TILE][STATE_SIZE];
};

// A thread's inputs of one tile; zero past the row's last token.
struct Inputs {
    DATA_T x[INPUTS], dt[INPUTS], B[GROUP_INPUTS], C[GROUP_INPUTS];

    __device__ __forceinline__ void load(const SelectiveScan& params, const RowView& view, int first, int channel,
                                         int last_channel) {
        const DATA_T zero = from_float<DATA_T>(0.0f);
#pragma unroll
        for (int i = 0; i < INPUTS; ++i) {
            const int index = i * THREADS + threadIdx.x, t = first + index / CHANNELS;
            const int64_t at = view.first_token + t, own = min(channel + index % CHANNELS, last_channel);
            x[i] = dt[i] = zero;
            if (t >= view.length) continue;
            x[i] = static_cast<const DATA_T*>(params.x)[view.row * params.x_row + at * params.x_token + own];
            dt[i] = static_cast<const DATA_T*>(params.dt)[view.row * params.dt_row + at * params.dt_token + own];
        }
        const int64_t group = blockIdx.y;
#pragma unroll
        for (int i = 0; i < GROUP_INPUTS; ++i) {
            const int index = i * THREADS + threadIdx.x, t = first + index / STATE_SIZE, n = index % STATE_SIZE;
            const int64_t at = view.first_token + t;
            B[i] = C[i] = zero;
            if (t >= view.length || index >= TILE * STATE_SIZE) continue;
            B[i] = static_cast<const DATA_T*>(
                params.B)[view.row * params.B_row + at * params.B_token + group * params.B_group + n];
            C[i] = static_cast<const DATA_T*>(
                params.C)[view.row * params.C_row + at * params.C_token + group * params.C_group + n];
        }
    }
    __device__ __forceinline__ void share(Shared& shared, const SelectiveScan& params, int first, int length,
                                          int channel, int last_channel) const {
#pragma unroll
        for (int i = 0; i < INPUTS; ++i) {
            const int index = i * THREADS + threadIdx.x, t = index / CHANNELS, c = index % CHANNELS;
            const int own = min(channel + c, last_channel);
            // A time step of zero leaves the state unchanged.
            const bool is_token = first + t < length;
            const float step = is_token ? time_step(params, dt[i], static_cast<const BIAS_T*>(params.dt_bias)[own]) : 0.0f;
            shared.step[t][c] = step;
            shared.scaled[t][c] = step * to_float(x[i]);
            shared.skip[t][c] = to_float(static_cast<const D_T*>(params.D)[own]) * to_float(x[i]);
        }
#pragma unroll
        for (int i = 0; i < GROUP_INPUTS; ++i) {
            const int index = i * THREADS + threadIdx.x;
            if (index >= TILE * STATE_SIZE) continue;
            shared.B[index / STATE_SIZE][index % STATE_SIZE] = to_float(B[i]);
            shared.C[index / STATE_SIZE][index % STATE_SIZE] = to_float(C[i]);
        }
    }
};

}  // namespace

// From sm_110 on, the compiler's own choice of registers spills four bytes.
#if __CUDA_ARCH__ >= 1100
#define LAUNCH_BOUNDS __launch_bounds__(THREADS, 1)
#else
#define LAUNCH_BOUNDS __launch_bounds__(THREADS)
#endif

extern "C" __global__ void LAUNCH_BOUNDS
    selective_scan_walk_tiles(const __grid_constant__ SelectiveScan params) {
    __shared__ Shared shared;
    wait_for_earlier_kernels();
    let_later_kernels_start();
    const RowView view = row_view(params.rows, blockIdx.z);
    if (view.slot < 0) return;

    // Threads past the group's last channel repeat its computation, because sums need all lanes of a warp.
    const int first_channel = blockIdx.y * params.channels_per_group + blockIdx.x * CHANNELS;
    const int last_channel = (blockIdx.y + 1) * params.channels_per_group - 1;
    const int c = threadIdx.x / LANES, lane = threadIdx.x % LANES, channel = min(first_channel + c, last_channel);
    ChannelState state;
    StoredState stored;
    stored.load(static_cast<const STATE_T*>(params.state) + view.slot * params.state_slot, channel, lane);
    state.load_rates(params, channel, lane);
    state.unpack(stored);

    Inputs inputs;
    inputs.load(params, view, 0, first_channel, last_channel);
    for (int first = 0; first < view.written; first += TILE) {
        inputs.share(shared, params, first, view.length, first_channel, last_channel);
        __syncthreads();
        inputs.load(params, view, first + TILE, first_channel, last_channel);
        const int count = min(TILE, view.length - first);  // up to TOGETHER - 1 more are computed, with time steps of 0
        for (int t = 0; t < count; t += TOGETHER) {
            float B[TOGETHER][ELEMENTS], C[TOGETHER][ELEMENTS], step[TOGETHER], scaled[TOGETHER], sum[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) {
                step[i] = shared.step[t + i][c];
                scaled[i] = shared.scaled[t + i][c];
#pragma unroll
                for (int e = 0; e < ELEMENTS; ++e) {
                    B[i][e] = shared.B[t + i][element(lane, e)];
                    C[i][e] = shared.C[t + i][element(lane, e)];
                }
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) sum[i] = state.update(step[i], scaled[i], B[i], C[i]);
            if (lane == 0)
#pragma unroll
                for (int i = 0; i < TOGETHER; ++i) shared.sum[t + i][c] = sum[i];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < INPUTS; ++i) {
            const int index = i * THREADS + threadIdx.x, t = index / CHANNELS, own = first_channel + index % CHANNELS;
            if (first + t >= view.written || own > last_channel) continue;
            const float y = shared.skip[t][index % CHANNELS] + shared.sum[t][index % CHANNELS];
            const float value = first + t < view.length ? y : 0.0f;
            static_cast<DATA_T*>(params.y)[view.row * params.y_row + (view.first_token + first + t) * params.y_token +
                                           own] = from_float<DATA_T>(value);
        }
        __syncthreads();
    }
    if (first_channel + c <= last_channel)
        state.packed().store(static_cast<STATE_T*>(params.state_out) + view.slot * params.state_out_slot, channel, lane);
}
