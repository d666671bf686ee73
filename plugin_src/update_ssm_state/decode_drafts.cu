// Draft tokens of a speculative row, one after another: the state stays in registers between its one read and the
// write after the last token; after each token it is also stored in a slot of that token.
//
// Macros: those of decode_group.cuh; D_T; BIAS_T; SOFTPLUS. Grid: as of decode_lanes.cu. A thread reads what it writes
// and nothing else of the state, before it writes any of it, so that a token may be stored over the state that the row
// began with. The numbers are those of as many calls with one token each: a 16-bit state is rounded after every token.
#include "common/launch.cuh"
#include "update_ssm_state/decode_group.cuh"
#include "update_ssm_state/decode_step.cuh"
#include "update_ssm_state/decode_update.cuh"

namespace {

// What a thread needs of one token. Loading and computing are apart, so that the next token's loads come early.
struct Token {
    DATA_T x[PASSES];
    HeadScalars<DATA_T, D_T, BIAS_T> scalars;
    GroupRow B, C;

    __device__ __forceinline__ void load(const SsmDecode& params, const RowView& view, int head, int row, int lane) {
        const int64_t at = view.first_token;
        const DATA_T* token = static_cast<const DATA_T*>(params.x) + at * params.x_token + head * params.x_head;
#pragma unroll
        for (int p = 0; p < PASSES; ++p)
            x[p] = StateTile::has_row(row, p) ? token[row + p * ROWS_OF_PASS] : from_float<DATA_T>(0.0f);
        scalars.load(params, view, head);
        B.load(static_cast<const DATA_T*>(params.B) + at * params.B_token + blockIdx.y * params.B_group, lane);
        C.load(static_cast<const DATA_T*>(params.C) + at * params.C_token + blockIdx.y * params.C_group, lane);
    }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    update_ssm_state_drafts(const __grid_constant__ SsmDecode params) {
    const int head = blockIdx.y * params.heads_per_group + blockIdx.x / PARTS;
    wait_for_earlier_kernels();
    let_later_kernels_start();
    const RowView view = row_view(params.rows, blockIdx.z);
    if (view.slot < 0 || view.length == 0) return;

    const int lane = threadIdx.x % LANES;
    const int row = blockIdx.x % PARTS * ROWS_OF_BLOCK + threadIdx.x / 32 * ROWS_OF_WARP + threadIdx.x % 32 / LANES;
    const int64_t head_state = int64_t(head) * HEAD_DIM * STATE_SIZE;
    StateTile tile;
    tile.load(static_cast<const STATE_T*>(params.state) + view.slot * params.state_slot + head_state, nullptr, row,
              lane);

    RowView at = view;
    Token next;
    next.load(params, at, head, row, lane);
    int next_slot = draft_slot(params.rows, blockIdx.z, 0);
    for (int t = 0; t < view.length; ++t) {
        const Token token = next;
        const int slot = next_slot;
        DATA_T* y_row = static_cast<DATA_T*>(params.y) + at.first_token * params.y_token + head * params.y_head;
        if (t + 1 < view.length) {
            ++at.first_token;
            next.load(params, at, head, row, lane);
            next_slot = draft_slot(params.rows, blockIdx.z, t + 1);
        }
        const HeadStep step = token.scalars.template step<SOFTPLUS>(params);
        float B[ELEMENTS], C[ELEMENTS], y[PASSES];
        token.B.unpack(B);
        token.C.unpack(C);
        STATE_T* kept = static_cast<STATE_T*>(params.state_out) + slot * params.state_out_slot + head_state;
#pragma unroll
        for (int p = 0; p < PASSES; ++p) {
            const float input = to_float(token.x[p]);
            y[p] = fmaf(step.skip, input, update_row(tile, p, step.decay, step.dt * input, B, C));
            if (slot >= 0) tile.store(kept, nullptr, row, lane, p);
        }
        write_rows(y_row, y, row, lane);
    }
}
