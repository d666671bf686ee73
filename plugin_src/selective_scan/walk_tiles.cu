// Many tokens per row: a block walks through TILE tokens at a time of its channels. Their inputs come through shared
// memory, where each time step is computed once for all lanes; those of the next tile are loaded while the block
// computes.
//
// Where rows and channels are too few to fill the GPU, rows are cut into chunks of chunk_tokens, and two kernels run.
// The first (ONLY_STATES) computes what each chunk makes of a state of zeros, but the first chunk of a row of the state
// before it. The second starts each chunk from what the chunks before it left, and computes y.
//
// Macros: those of channel_state.cuh; THREADS; TILE; ONLY_STATES; BLOCKS (of a multiprocessor, which registers are to
// allow).
// Grid: x covers the channels of a group, y the groups, z the chunks of all rows. The state is read before anything of
// it is written, by the thread that writes it or by the first kernel, so that it may be updated in place.
#include "selective_scan/channel_state.cuh"

namespace {

constexpr int CHANNELS = THREADS / LANES;
constexpr int OWN_TOKENS = TILE / LANES;  // of a tile, whose x and dt a thread reads and whose y it writes
constexpr int GROUP_INPUTS = (TILE * STATE_SIZE + THREADS - 1) / THREADS;  // of B and of C
// Tokens whose sums over the lanes are added up at a time.
constexpr int TOGETHER = LANES > 4 ? LANES : 4;
constexpr int SUMS_OF_LANE = TOGETHER / LANES;
constexpr int SUM_PITCH = CHANNELS + 32 / LANES;  // the threads of a warp write to different banks
static_assert(TILE % TOGETHER == 0 && TILE % LANES == 0, "tiles are full");

struct Shared {
    float2 steps[TILE][CHANNELS];  // the time step, and times x
    float sums[ONLY_STATES ? 1 : TILE][SUM_PITCH];  // C times the state
    alignas(16) float B[TILE][STATE_SIZE];
    alignas(16) float C[ONLY_STATES ? 1 : TILE][STATE_SIZE];
};

// A row's chunk: tokens first to last - 1 of the row, of which y is written up to `written`.
struct Chunk {
    int row, index, first, last, written;

    __device__ __forceinline__ Chunk(const SelectiveScan& params, int block) {
        row = block / params.chunks;
        index = block % params.chunks;
        first = index * params.chunk_tokens;
    }
    __device__ __forceinline__ void cut(const SelectiveScan& params, const RowView& view) {
        const int end = params.chunks == 1 ? view.written : first + params.chunk_tokens;
        last = min(end, view.length);
        written = min(end, view.written);
    }
    __device__ __forceinline__ bool is_last(const RowView& view) const { return last == view.length; }
};

// A thread's inputs of one tile; zero past the chunk's last token.
struct Inputs {
    DATA_T x[OWN_TOKENS], dt[OWN_TOKENS], B[GROUP_INPUTS], C[ONLY_STATES ? 1 : GROUP_INPUTS];

    // x, dt: at this thread's channel and its first token. B, C: at the group and the tile's first token. left: tokens.
    __device__ __forceinline__ void load(const SelectiveScan& params, const DATA_T* x_from, const DATA_T* dt_from,
                                         const DATA_T* B_from, const DATA_T* C_from, int left) {
        if (left >= TILE)
            load_tokens<true>(params, x_from, dt_from, B_from, C_from, left);
        else
            load_tokens<false>(params, x_from, dt_from, B_from, C_from, left);
    }
    template <bool FULL>
    __device__ __forceinline__ void load_tokens(const SelectiveScan& params, const DATA_T* x_from,
                                                const DATA_T* dt_from, const DATA_T* B_from, const DATA_T* C_from,
                                                int left) {
        const DATA_T zero = from_float<DATA_T>(0.0f);
        const int64_t x_step = LANES * params.x_token, dt_step = LANES * params.dt_token;
#pragma unroll
        for (int i = 0; i < OWN_TOKENS; ++i) {
            const bool is_token = FULL || int(threadIdx.x) / CHANNELS + i * LANES < left;
            x[i] = is_token ? *x_from : zero;
            dt[i] = is_token ? *dt_from : zero;
            x_from += x_step;
            dt_from += dt_step;
        }
#pragma unroll
        for (int i = 0; i < GROUP_INPUTS; ++i) {
            const int index = i * THREADS + threadIdx.x, t = index / STATE_SIZE, n = index % STATE_SIZE;
            const bool is_token = FULL ? TILE * STATE_SIZE % THREADS == 0 || t < TILE : t < left;
            B[i] = is_token ? B_from[t * params.B_token + n] : zero;
            if (!ONLY_STATES) C[i] = is_token ? C_from[t * params.C_token + n] : zero;
        }
    }
    // skip: what of y does not come from the state.
    __device__ __forceinline__ void share(Shared& shared, const SelectiveScan& params, BIAS_T bias, float D,
                                          float (&skip)[OWN_TOKENS], int left) const {
        const int token = threadIdx.x / CHANNELS, c = threadIdx.x % CHANNELS;
#pragma unroll
        for (int i = 0; i < OWN_TOKENS; ++i) {
            const int t = token + i * LANES;
            // A time step of zero leaves the state unchanged.
            const float found = time_step(params, dt[i], bias), step = t < left ? found : 0.0f, value = to_float(x[i]);
            shared.steps[t][c] = make_float2(step, step * value);
            skip[i] = D * value;
        }
#pragma unroll
        for (int i = 0; i < GROUP_INPUTS; ++i) {
            const int index = i * THREADS + threadIdx.x;
            if (index >= TILE * STATE_SIZE) continue;
            shared.B[index / STATE_SIZE][index % STATE_SIZE] = to_float(B[i]);
            if (!ONLY_STATES) shared.C[index / STATE_SIZE][index % STATE_SIZE] = to_float(C[i]);
        }
    }
};

// Adds over the lanes of a channel. In the end, sums[i] of a lane is that of token lane * SUMS_OF_LANE + i.
template <int COUNT = TOGETHER, int APART = LANES / 2>
__device__ __forceinline__ void reduce_over_lanes(float (&sums)[TOGETHER], int lane) {
    if constexpr (APART > 0) {
        const bool upper = lane & APART;
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) {
            const float given = upper ? sums[i] : sums[i + COUNT / 2];
            sums[i] = (upper ? sums[i + COUNT / 2] : sums[i]) + __shfl_xor_sync(0xffffffffu, given, APART);
        }
        reduce_over_lanes<COUNT / 2, APART / 2>(sums, lane);
    }
}

// A lane's part of a channel's state in the workspace.
__device__ __forceinline__ int64_t chunk_place(const SelectiveScan& params, const Chunk& chunk, int index,
                                               int channel) {
    return (int64_t(chunk.row) * params.chunks + index) * params.channels + channel;
}

__device__ __forceinline__ void load_chunk_state(float (&h)[ELEMENTS], const float* from, int lane) {
#pragma unroll
    for (int e = 0; e < ELEMENTS; ++e) h[e] = from[element(lane, e)];
}

}  // namespace

// For sm_100 and sm_110, the compiler spills four bytes to fit as many blocks.
#if __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
#define LEAST_BLOCKS (BLOCKS - 1)
#else
#define LEAST_BLOCKS BLOCKS
#endif

extern "C" __global__ void __launch_bounds__(THREADS, LEAST_BLOCKS)
    selective_scan_walk_tiles(const __grid_constant__ SelectiveScan params) {
    __shared__ Shared shared;
    wait_for_earlier_kernels();
    Chunk chunk(params, blockIdx.z);
    const RowView view = row_view(params.rows, chunk.row);
    if (view.slot < 0) return;
    chunk.cut(params, view);
    // The first kernel has nothing to do for a row's last chunk, the second nothing past the row's end.
    if (ONLY_STATES ? chunk.last >= view.length : chunk.index > 0 && chunk.first >= view.written) return;

    // Threads past the group's last channel repeat its computation, because sums need all lanes of a warp.
    const int first_channel = blockIdx.y * params.channels_per_group + blockIdx.x * CHANNELS;
    const int last_channel = (blockIdx.y + 1) * params.channels_per_group - 1;
    const int c = threadIdx.x / LANES, lane = threadIdx.x % LANES, channel = min(first_channel + c, last_channel);
    const int own_channel = min(first_channel + int(threadIdx.x) % CHANNELS, last_channel);
    const bool is_owner = first_channel + c <= last_channel;
    ChannelState state;
    state.load_rates(params, channel, lane);
    const bool is_cut = params.chunks > 1 && view.length > params.chunk_tokens;
    if (chunk.index == 0 && (ONLY_STATES || !is_cut)) {
        StoredState stored;
        stored.load(static_cast<const STATE_T*>(params.state) + view.slot * params.state_slot, channel, lane);
        state.unpack(stored);
        if (ONLY_STATES && is_owner) {
            float* to = params.chunk_states + chunk_place(params, chunk, 0, channel) * STATE_SIZE;
#pragma unroll
            for (int e = 0; e < ELEMENTS; ++e) to[element(lane, e)] = state.h[e];
        }
    } else if (ONLY_STATES || chunk.first >= view.length) {
#pragma unroll
        for (int e = 0; e < ELEMENTS; ++e) state.h[e] = 0.0f;
    } else {
        const int start = min(chunk.index, 1);
        load_chunk_state(state.h, params.chunk_states + chunk_place(params, chunk, start, channel) * STATE_SIZE, lane);
        for (int k = start + 1; k <= chunk.index; ++k) {
            const int64_t place = chunk_place(params, chunk, k, channel);
            const float step = params.chunk_steps[place];
            float written[ELEMENTS];
            load_chunk_state(written, params.chunk_states + place * STATE_SIZE, lane);
#pragma unroll
            for (int e = 0; e < ELEMENTS; ++e)
                state.h[e] = fmaf(exp2_approx(state.rate[e] * step), state.h[e], written[e]);
        }
    }

    const int64_t at = view.first_token + chunk.first + threadIdx.x / CHANNELS;
    const DATA_T* x =
        static_cast<const DATA_T*>(params.x) + view.row * params.x_row + at * params.x_token + own_channel;
    const DATA_T* dt =
        static_cast<const DATA_T*>(params.dt) + view.row * params.dt_row + at * params.dt_token + own_channel;
    const DATA_T* B = static_cast<const DATA_T*>(params.B) + view.row * params.B_row +
                      (view.first_token + chunk.first) * params.B_token + blockIdx.y * params.B_group;
    const DATA_T* C = static_cast<const DATA_T*>(params.C) + view.row * params.C_row +
                      (view.first_token + chunk.first) * params.C_token + blockIdx.y * params.C_group;
    DATA_T* y = static_cast<DATA_T*>(params.y) + view.row * params.y_row + at * params.y_token + own_channel;
    const BIAS_T bias = static_cast<const BIAS_T*>(params.dt_bias)[own_channel];
    const float D = to_float(static_cast<const D_T*>(params.D)[own_channel]);
    float total = 0.0f;  // of the chunk's time steps

    Inputs inputs;
    inputs.load(params, x, dt, B, C, chunk.last - chunk.first);
#pragma unroll 1
    for (int first = chunk.first; first < (ONLY_STATES ? chunk.last : chunk.written); first += TILE) {
        float skip[OWN_TOKENS];
        inputs.share(shared, params, bias, D, skip, chunk.last - first);
        __syncthreads();
        x += TILE * params.x_token;
        dt += TILE * params.dt_token;
        B += TILE * params.B_token;
        C += TILE * params.C_token;
        inputs.load(params, x, dt, B, C, chunk.last - first - TILE);
        const int count = min(TILE, chunk.last - first);  // up to TOGETHER - 1 more are computed, with time steps of 0
#pragma unroll 1
        for (int t = 0; t < count; t += TOGETHER) {
            float sums[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) {
                float B_row[ELEMENTS], C_row[ELEMENTS];
                const float2 step = shared.steps[t + i][c];
#pragma unroll
                for (int e = 0; e < ELEMENTS; ++e) {
                    B_row[e] = shared.B[t + i][element(lane, e)];
                    C_row[e] = ONLY_STATES ? 0.0f : shared.C[t + i][element(lane, e)];
                }
                sums[i] = state.update(step.x, step.y, B_row, C_row);
                if (ONLY_STATES) total += step.x;
            }
            if constexpr (!ONLY_STATES) {
                reduce_over_lanes(sums, lane);
#pragma unroll
                for (int i = 0; i < SUMS_OF_LANE; ++i) shared.sums[t + lane * SUMS_OF_LANE + i][c] = sums[i];
            }
        }
        __syncthreads();
        if constexpr (!ONLY_STATES) {
            const int token = first + threadIdx.x / CHANNELS;
            const int64_t y_step = LANES * params.y_token;
            const int end = first_channel + int(threadIdx.x) % CHANNELS <= last_channel ? chunk.written : 0;
            DATA_T* to = y;
#pragma unroll
            for (int i = 0; i < OWN_TOKENS; ++i) {
                const float sum = shared.sums[threadIdx.x / CHANNELS + i * LANES][threadIdx.x % CHANNELS];
                const float value = token + i * LANES < chunk.last ? skip[i] + sum : 0.0f;
                if (token + i * LANES < end) *to = from_float<DATA_T>(value);
                to += y_step;
            }
        }
        y += TILE * params.y_token;
    }
    // Not before: blocks of the next kernel would take multiprocessors from this one's, unevenly.
    let_later_kernels_start();
    if (!is_owner) return;
    if (ONLY_STATES) {
        const int64_t place = chunk_place(params, chunk, chunk.index + 1, channel);
#pragma unroll
        for (int e = 0; e < ELEMENTS; ++e) params.chunk_states[place * STATE_SIZE + element(lane, e)] = state.h[e];
        if (lane == 0) params.chunk_steps[place] = total;
    } else if (chunk.first < view.length ? chunk.is_last(view) : chunk.index == 0) {
        state.packed().store(static_cast<STATE_T*>(params.state_out) + view.slot * params.state_out_slot, channel,
                             lane);
    }
}
