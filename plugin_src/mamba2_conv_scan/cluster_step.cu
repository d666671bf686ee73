// One token a row in one launch: convolution, SiLU, state update, skip connection and gate.
//
// A cluster of thread blocks has the heads of one group of one row, a block each. Every block convolves the channels of
// its own head, and the group's B and C again, which costs less than to exchange them. All blocks of the cluster read
// the convolution state of B and C, and only the first one writes it, after the cluster's barrier: it may be updated in
// place.
//
// Macros: those of decode_tile.cuh; D_T; BIAS_T; SOFTPLUS; KERNEL (taps); CONV_ACCESS (elements of one access to the
// convolution's state and filter, a divisor of KERNEL); SILU. Grid: x is the cluster, y the groups, z the rows of the
// batch.
#include "common/cluster.cuh"
#include "common/launch.cuh"
#include "mamba2_conv_scan/params.cuh"
#include "update_ssm_state/decode_step.cuh"
#include "update_ssm_state/decode_update.cuh"

namespace {

constexpr int BLOCK_CHANNELS = HEAD_DIM + 2 * STATE_SIZE;
constexpr int CHANNELS_OF_THREAD = (BLOCK_CHANNELS + THREADS - 1) / THREADS;

// The KERNEL columns of one channel.
struct Columns {
    Access<DATA_T, CONV_ACCESS> parts[KERNEL / CONV_ACCESS];

    __device__ __forceinline__ void load(const DATA_T* from) {
#pragma unroll
        for (int i = 0; i < KERNEL / CONV_ACCESS; ++i) parts[i].load(from + i * CONV_ACCESS);
    }
    __device__ __forceinline__ void store(DATA_T* to) const {
#pragma unroll
        for (int i = 0; i < KERNEL / CONV_ACCESS; ++i) parts[i].store(to + i * CONV_ACCESS);
    }
    __device__ __forceinline__ void unpack(float (&to)[KERNEL]) const {
#pragma unroll
        for (int i = 0; i < KERNEL / CONV_ACCESS; ++i) parts[i].unpack(to + i * CONV_ACCESS);
    }
    __device__ __forceinline__ void pack(const float (&from)[KERNEL]) {
#pragma unroll
        for (int i = 0; i < KERNEL / CONV_ACCESS; ++i) parts[i].pack(from + i * CONV_ACCESS);
    }
};

// One channel of the convolution: what it reads, its output, and its state, which the update shifts by one column.
struct Channel {
    Columns state, weight;
    DATA_T input = {}, bias = {};  // zero where there is none
    int index;  // among all channels

    // i counts the block's channels: x of its head, then the group's B, then its C.
    __device__ __forceinline__ void locate(const Mamba2Step& params, int i, int head) {
        const int heads_channels = params.groups * params.ssm.heads_per_group * HEAD_DIM;
        const int group = blockIdx.y;
        if (i < HEAD_DIM) index = head * HEAD_DIM + i;
        else if (i < HEAD_DIM + STATE_SIZE) index = heads_channels + group * STATE_SIZE + i - HEAD_DIM;
        else index = heads_channels + (params.groups + group) * STATE_SIZE + i - HEAD_DIM - STATE_SIZE;
    }
    // Of a row whose length is not known yet, as far as its place depends on no memory.
    __device__ __forceinline__ void prefetch(const Mamba2Step& params, int64_t row) const {
        const Rows& rows = params.ssm.rows;
        prefetch_to_l2(static_cast<const DATA_T*>(params.conv_weight) + index * KERNEL);
        if (params.conv_bias) prefetch_to_l2(static_cast<const DATA_T*>(params.conv_bias) + index);
        if (!rows.state_indices)
            prefetch_to_l2(static_cast<const DATA_T*>(params.conv_state) + row * params.conv_state_slot +
                           index * KERNEL);
        if (!rows.query_start_loc)
            prefetch_to_l2(static_cast<const DATA_T*>(params.conv_input) + row * params.conv_row + index);
    }
    __device__ __forceinline__ void load(const Mamba2Step& params, const RowView& view) {
        state.load(static_cast<const DATA_T*>(params.conv_state) + view.slot * params.conv_state_slot + index * KERNEL);
        weight.load(static_cast<const DATA_T*>(params.conv_weight) + index * KERNEL);
        if (params.conv_bias) bias = static_cast<const DATA_T*>(params.conv_bias)[index];
        if (view.written > 0)
            input = static_cast<const DATA_T*>(params.conv_input)[view.row * params.conv_row +
                                                                  view.first_token * params.conv_token + index];
    }
    __device__ __forceinline__ float update(const Mamba2Step& params) {
        float columns[KERNEL], taps[KERNEL];
        state.unpack(columns);
        weight.unpack(taps);
#pragma unroll
        for (int j = 0; j + 1 < KERNEL; ++j) columns[j] = columns[j + 1];
        columns[KERNEL - 1] = to_float(input);
        state.pack(columns);
        float sum = params.conv_bias ? to_float(bias) : 0.0f;
#pragma unroll
        for (int j = 0; j < KERNEL; ++j) sum = fmaf(taps[j], columns[j], sum);
        return SILU ? silu(sum) : sum;
    }
    __device__ __forceinline__ void store(const Mamba2Step& params, const RowView& view) const {
        state.store(static_cast<DATA_T*>(params.conv_state_out) + view.slot * params.conv_state_out_slot +
                    index * KERNEL);
    }
};

// A lane's elements of B or C, which are zero past STATE_SIZE.
__device__ __forceinline__ void load_group(float (&to)[ELEMENTS], const float* from, int lane) {
#pragma unroll
    for (int j = 0; j < UNITS_OF_LANE; ++j) {
#pragma unroll
        for (int i = 0; i < STATE_ACCESS; ++i)
            to[j * STATE_ACCESS + i] = has_unit(lane, j) ? from[(j * LANES + lane) * STATE_ACCESS + i] : 0.0f;
    }
}

// What a thread reads for one part of the head; zeros for the token of a row that has none.
struct HeadPart {
    StateTile tile;
    DATA_T gate[PASSES] = {};
    HeadScalars<DATA_T, D_T, BIAS_T> scalars = {};

    // row: the lane's first one, from the start of the head.
    __device__ __forceinline__ void load(const Mamba2Step& params, const RowView& view, int head, int row, int lane) {
        const SsmDecode& ssm = params.ssm;
        const int64_t head_row = int64_t(head) * HEAD_DIM;
        tile.load(static_cast<const STATE_T*>(ssm.state) + view.slot * ssm.state_slot + head_row * STATE_SIZE,
                  ssm.scale + view.slot * ssm.scale_slot + head_row, row, lane);
        if (view.written == 0) return;
        const DATA_T* token = static_cast<const DATA_T*>(ssm.gate) + view.row * ssm.gate_row +
                              view.first_token * ssm.gate_token + head_row;
#pragma unroll
        for (int p = 0; p < PASSES; ++p)
            if (StateTile::has_row(row, p)) gate[p] = token[row + p * ROWS_OF_PASS];
        scalars.load(ssm, view, head);
    }

    // x: the head's convolved channels.
    __device__ __forceinline__ void update(const Mamba2Step& params, const RowView& view, int head, int row, int lane,
                                           const float* x, const float (&B)[ELEMENTS], const float (&C)[ELEMENTS]) {
        const SsmDecode& ssm = params.ssm;
        const int64_t head_row = int64_t(head) * HEAD_DIM;
        const HeadStep step = scalars.template step<SOFTPLUS>(ssm);
        float y[PASSES];
#pragma unroll
        for (int p = 0; p < PASSES; ++p) {
            y[p] = 0.0f;
            if (view.length > 0) {
                const bool has_row = StateTile::has_row(row, p);
                const float input = has_row ? x[row + p * ROWS_OF_PASS] : 0.0f;
                y[p] = fmaf(step.skip, input, update_row(tile, p, step.decay, step.dt * input, B, C));
                y[p] *= has_row ? silu(to_float(gate[p])) : 0.0f;
            }
            tile.store(static_cast<STATE_T*>(ssm.state_out) + view.slot * ssm.state_out_slot + head_row * STATE_SIZE,
                       ssm.scale_out + view.slot * ssm.scale_out_slot + head_row, row, lane, p);
        }
        if (view.written > 0)
            write_rows(static_cast<DATA_T*>(ssm.y) + view.row * ssm.y_row + view.first_token * ssm.y_token +
                           head * ssm.y_head, y, row, lane);
    }
};

// Asks for what the block reads while earlier kernels still run.
__device__ __forceinline__ void prefetch(const Mamba2Step& params, int head) {
    const SsmDecode& ssm = params.ssm;
    const int64_t row = blockIdx.z, head_row = int64_t(head) * HEAD_DIM;
    if (threadIdx.x == 0 && !ssm.rows.state_indices)
        prefetch_bulk_to_l2(static_cast<const STATE_T*>(ssm.state) + row * ssm.state_slot + head_row * STATE_SIZE,
                            HEAD_DIM * STATE_SIZE * int(sizeof(STATE_T)));
    for (int i = threadIdx.x; i < BLOCK_CHANNELS; i += THREADS) {
        Channel channel;
        channel.locate(params, i, head);
        channel.prefetch(params, row);
    }
    if (threadIdx.x == 0) HeadScalars<DATA_T, D_T, BIAS_T>::prefetch(ssm, row, head);
    if (!ssm.rows.query_start_loc)
        prefetch_run_to_l2<HEAD_DIM * sizeof(DATA_T)>(static_cast<const DATA_T*>(ssm.gate) + row * ssm.gate_row +
                                                      head_row);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) mamba2_step(const __grid_constant__ Mamba2Step params) {
    __shared__ __align__(16) float channels[BLOCK_CHANNELS];
    const int head = blockIdx.y * params.ssm.heads_per_group + blockIdx.x;
    if (params.ssm.prefetch_blocks > 0) prefetch(params, head);
    wait_for_earlier_kernels();
    const RowView view = row_view(params.ssm.rows, blockIdx.z);
    // All blocks of a cluster have the same row.
    if (view.slot < 0) return;

    const int lane = threadIdx.x % LANES;
    const int row_of_part = threadIdx.x / 32 * ROWS_OF_WARP + threadIdx.x % 32 / LANES;
    HeadPart part;
    part.load(params, view, head, row_of_part, lane);
    Channel convolved[CHANNELS_OF_THREAD];
#pragma unroll
    for (int i = 0; i < CHANNELS_OF_THREAD; ++i) {
        convolved[i].locate(params, i * THREADS + threadIdx.x, head);
        if (i * THREADS + threadIdx.x < BLOCK_CHANNELS) convolved[i].load(params, view);
    }
    let_later_kernels_start();
#pragma unroll
    for (int i = 0; i < CHANNELS_OF_THREAD; ++i) {
        const int channel = i * THREADS + threadIdx.x;
        if (channel < BLOCK_CHANNELS && view.length > 0) channels[channel] = convolved[i].update(params);
        if (channel < HEAD_DIM) convolved[i].store(params, view);
    }
    cluster_arrive();
    __syncthreads();
    float B[ELEMENTS], C[ELEMENTS];
    load_group(B, channels + HEAD_DIM, lane);
    load_group(C, channels + HEAD_DIM + STATE_SIZE, lane);
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
        HeadPart next;
        if (i + 1 < PARTS) next.load(params, view, head, (i + 1) * ROWS_OF_BLOCK + row_of_part, lane);
        part.update(params, view, head, i * ROWS_OF_BLOCK + row_of_part, lane, channels, B, C);
        if (i + 1 < PARTS) part = next;
    }
    cluster_wait();
    if (cluster_rank() != 0) return;
#pragma unroll
    for (int i = 0; i < CHANNELS_OF_THREAD; ++i) {
        const int channel = i * THREADS + threadIdx.x;
        if (channel >= HEAD_DIM && channel < BLOCK_CHANNELS) convolved[i].store(params, view);
    }
}
