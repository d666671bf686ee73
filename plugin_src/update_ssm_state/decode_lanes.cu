// One token a row: one pass over the state, which stays in registers between its one read and its one write.
//
// Macros: those of decode_group.cuh; D_T; BIAS_T; SOFTPLUS; GATED (y is multiplied by SiLU of a gate). Grid: x covers
// the heads of a group and their PARTS of ROWS_OF_BLOCK rows, y the groups, z the rows of the batch. A thread reads
// what it writes and nothing else of the state, so that it may be updated in place.
#include "common/launch.cuh"
#include "update_ssm_state/decode_group.cuh"
#include "update_ssm_state/decode_step.cuh"
#include "update_ssm_state/decode_update.cuh"

namespace {

// Asks for what the block reads, as far as its place depends on no memory: its part of the state by one instruction, as
// single lines come a sector at a time, and all that the first step of the computation waits for.
__device__ __forceinline__ void prefetch(const SsmDecode& params, int head) {
    const int64_t row = blockIdx.z;
    if (threadIdx.x == 0 && !params.rows.state_indices) {
        const int first = blockIdx.x % PARTS * ROWS_OF_BLOCK;
        const int count = EXACT_ROWS ? ROWS_OF_BLOCK : min(ROWS_OF_BLOCK, HEAD_DIM - first);
        prefetch_bulk_to_l2(static_cast<const STATE_T*>(params.state) + row * params.state_slot +
                                (int64_t(head) * HEAD_DIM + first) * STATE_SIZE,
                            count * STATE_SIZE * int(sizeof(STATE_T)));
    }
    if (threadIdx.x == THREADS - 1) HeadScalars<DATA_T, D_T, BIAS_T>::prefetch(params, row, head);
    if (params.rows.query_start_loc) return;
    constexpr int HEAD_BYTES = HEAD_DIM * sizeof(DATA_T), GROUP_BYTES = STATE_SIZE * sizeof(DATA_T);
    prefetch_run_to_l2<HEAD_BYTES>(static_cast<const DATA_T*>(params.x) + row * params.x_row + head * params.x_head);
    const int64_t group = blockIdx.y;
    prefetch_run_to_l2<GROUP_BYTES>(static_cast<const DATA_T*>(params.B) + row * params.B_row + group * params.B_group);
    prefetch_run_to_l2<GROUP_BYTES>(static_cast<const DATA_T*>(params.C) + row * params.C_row + group * params.C_group);
    if (GATED)
        prefetch_run_to_l2<HEAD_BYTES>(static_cast<const DATA_T*>(params.gate) + row * params.gate_row +
                                       int64_t(head) * HEAD_DIM);
}

// Narrow accesses to B and C take more registers, of which the compiler would spill one to fit one more block; 0: as
// many blocks as it finds best.
constexpr int LEAST_BLOCKS = GROUP_ACCESS < STATE_ACCESS ? 1 : 0;

// A packed row without a token: its blocks return at once, or go the way of the others without reading or writing a
// token. With a gate and a state of 16 bits the former is slower: its loads begin later, and it takes more registers.
constexpr bool EMPTY_RETURNS = !(GATED && sizeof(STATE_T) == 2);

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, LEAST_BLOCKS)
    update_ssm_state_decode(const __grid_constant__ SsmDecode params) {
    const int head = blockIdx.y * params.heads_per_group + blockIdx.x / PARTS;
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    if (block < params.prefetch_blocks) prefetch(params, head);
    wait_for_earlier_kernels();
    // Not before: blocks of the next kernel would take multiprocessors from this one's while those still wait.
    let_later_kernels_start();
    const RowView view = row_view(params.rows, blockIdx.z);
    if (view.slot < 0) return;

    const int lane = threadIdx.x % LANES;
    const int row = blockIdx.x % PARTS * ROWS_OF_BLOCK + threadIdx.x / 32 * ROWS_OF_WARP + threadIdx.x % 32 / LANES;
    const int64_t head_row = int64_t(head) * HEAD_DIM;
    StateTile tile;
    tile.load(static_cast<const STATE_T*>(params.state) + view.slot * params.state_slot + head_row * STATE_SIZE,
              params.scale + view.slot * params.scale_slot + head_row, row, lane);

    // Its addresses are computed where it stores: kept over the computation they take registers.
    const auto store = [&](int p) {
        tile.store(static_cast<STATE_T*>(params.state_out) + view.slot * params.state_out_slot + head_row * STATE_SIZE,
                   params.scale_out + view.slot * params.scale_out_slot + head_row, row, lane, p);
    };
    if (EMPTY_RETURNS && view.written == 0) {
#pragma unroll
        for (int p = 0; p < PASSES; ++p) store(p);
        return;
    }

    DATA_T x[PASSES], gate[PASSES];
    HeadScalars<DATA_T, D_T, BIAS_T> scalars = {};  // set without a token too: softplus branches on them
    GroupRow B_row, C_row;
    // A dense row has a token to read even where its length is 0: these loads need not wait for the length.
    if (EMPTY_RETURNS || view.written > 0) {
        const DATA_T* token = static_cast<const DATA_T*>(params.x) + view.row * params.x_row +
                              view.first_token * params.x_token + head * params.x_head;
#pragma unroll
        for (int p = 0; p < PASSES; ++p)
            x[p] = StateTile::has_row(row, p) ? token[row + p * ROWS_OF_PASS] : from_float<DATA_T>(0.0f);
        if (GATED) {
            token = static_cast<const DATA_T*>(params.gate) + view.row * params.gate_row +
                    view.first_token * params.gate_token + head_row;
#pragma unroll
            for (int p = 0; p < PASSES; ++p)
                gate[p] = StateTile::has_row(row, p) ? token[row + p * ROWS_OF_PASS] : from_float<DATA_T>(0.0f);
        }
        scalars.load(params, view, head);
        B_row.load(static_cast<const DATA_T*>(params.B) + view.row * params.B_row +
                       view.first_token * params.B_token + blockIdx.y * params.B_group, lane);
        C_row.load(static_cast<const DATA_T*>(params.C) + view.row * params.C_row +
                       view.first_token * params.C_token + blockIdx.y * params.C_group, lane);
    }
    const HeadStep step = scalars.template step<SOFTPLUS>(params);
    float B[ELEMENTS], C[ELEMENTS], y[PASSES];
    B_row.unpack(B);
    C_row.unpack(C);
#pragma unroll
    for (int p = 0; p < PASSES; ++p) {
        y[p] = 0.0f;
        if (view.length > 0) {
            const float input = to_float(x[p]);
            y[p] = fmaf(step.skip, input, update_row(tile, p, step.decay, step.dt * input, B, C));
            if (GATED) y[p] *= silu(to_float(gate[p]));
        }
        store(p);
    }
    if (EMPTY_RETURNS || view.written > 0)
        write_rows(static_cast<DATA_T*>(params.y) + view.row * params.y_row + view.first_token * params.y_token +
                       head * params.y_head, y, row, lane);
}
