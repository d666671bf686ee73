// One token a row: every row of a head's state lies across LANES lanes of a warp, in registers between its one read and
// its one write.
//
// Macros: DATA_T; STATE_T; D_T; BIAS_T; HEAD_DIM; STATE_SIZE; LANES (of a row, a power of two); STATE_ACCESS and
// GROUP_ACCESS (elements of one access to the state, and to B and C); SOFTPLUS; PASSES (rows of a lane, all in flight at once);
// THREADS; HEADS (of a block, one after the other, of one group); PREFETCH (blocks ask for their part of the state before their turn).
// Grid: x covers the heads of a group and their PARTS of ROWS_OF_BLOCK, y the groups, z the rows. A thread reads what it writes and nothing
// else of the state, so that it may be updated in place.
#include "common/launch.cuh"
#include "update_ssm_state/decode_access.cuh"
#include "update_ssm_state/decode_step.cuh"

namespace {

constexpr int UNITS = STATE_SIZE / STATE_ACCESS;               // accesses of a row
constexpr int UNITS_OF_LANE = (UNITS + LANES - 1) / LANES;     // lane l has the units l, l + LANES, ...
constexpr int ELEMENTS = UNITS_OF_LANE * STATE_ACCESS;
constexpr int ROWS_OF_PASS = 32 / LANES;
constexpr int ROWS_OF_WARP = ROWS_OF_PASS * PASSES;            // neighbours
constexpr int ROWS_OF_BLOCK = THREADS / 32 * ROWS_OF_WARP;
constexpr int PARTS = (HEAD_DIM + ROWS_OF_BLOCK - 1) / ROWS_OF_BLOCK;
constexpr bool EXACT_LANES = UNITS % LANES == 0;
constexpr bool EXACT_ROWS = HEAD_DIM % ROWS_OF_BLOCK == 0;

__device__ __forceinline__ bool has_unit(int lane, int j) { return EXACT_LANES || j * LANES + lane < UNITS; }

__device__ __forceinline__ bool has_row(int first_row, int p) {
    return EXACT_ROWS || first_row + p * ROWS_OF_PASS < HEAD_DIM;
}
// Of access j to pass p, from the lane's first one.
__device__ __forceinline__ int offset(int p, int j) { return p * ROWS_OF_PASS * STATE_SIZE + j * LANES * STATE_ACCESS; }

// A lane's elements of B or C, which are zero past STATE_SIZE.
struct GroupRow {
    Access<DATA_T, GROUP_ACCESS> parts[ELEMENTS / GROUP_ACCESS];

    __device__ __forceinline__ void load(const DATA_T* from, int lane) {
#pragma unroll
        for (int e = 0; e < ELEMENTS; e += GROUP_ACCESS) {
            const int j = e / STATE_ACCESS;
            if (!EXACT_LANES) parts[e / GROUP_ACCESS] = {};
            if (has_unit(lane, j))
                parts[e / GROUP_ACCESS].load(from + (j * LANES + lane) * STATE_ACCESS + e % STATE_ACCESS);
        }
    }
    __device__ __forceinline__ void unpack(float (&to)[ELEMENTS]) const {
#pragma unroll
        for (int e = 0; e < ELEMENTS; e += GROUP_ACCESS) parts[e / GROUP_ACCESS].unpack(to + e);
        // Kept as floats: the compiler would rather convert again at every use than hold more registers.
#pragma unroll
        for (int e = 0; e < ELEMENTS; ++e) asm volatile("" : "+f"(to[e]));
    }
};

__device__ __forceinline__ float sum_of_row(float value) {
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

// state = decay * state + written * B for a lane's elements of a row; the row's state @ C in all of its lanes.
__device__ __forceinline__ float update_row(Access<STATE_T, STATE_ACCESS> (&state)[UNITS_OF_LANE], float decay,
                                            float written, const float (&B)[ELEMENTS], const float (&C)[ELEMENTS]) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < UNITS_OF_LANE; ++j) {
        float values[STATE_ACCESS];
        state[j].unpack(values);
#pragma unroll
        for (int i = 0; i < STATE_ACCESS; ++i) {
            const int e = j * STATE_ACCESS + i;
            values[i] = fmaf(written, B[e], decay * values[i]);
            sum = fmaf(values[i], C[e], sum);
        }
        state[j].pack(values);
    }
    return sum_of_row(sum);
}

// The lines of the block's part of a dense row's state, whose place depends on no memory.
__device__ __forceinline__ void prefetch_state(const SsmDecode& params, int head) {
    constexpr int LINE = 128 / sizeof(STATE_T);
    if (params.rows.state_indices) return;
    const int first_row = blockIdx.x % PARTS * ROWS_OF_BLOCK;
    const STATE_T* part = static_cast<const STATE_T*>(params.state) + blockIdx.z * params.state_slot +
                          (int64_t(head) * HEAD_DIM + first_row) * STATE_SIZE;
    const int rows = EXACT_ROWS ? ROWS_OF_BLOCK : min(ROWS_OF_BLOCK, HEAD_DIM - first_row);
    for (int i = threadIdx.x * LINE; i < rows * STATE_SIZE; i += THREADS * LINE) prefetch_to_l2(part + i);
}

// What a thread reads for one head: its part of the state, and the token's x and dt.
struct Tile {
    Access<STATE_T, STATE_ACCESS> state[PASSES][UNITS_OF_LANE];
    DATA_T x[PASSES];
    HeadScalars<DATA_T, D_T, BIAS_T> scalars;

    __device__ __forceinline__ void load(const SsmDecode& params, const RowView& view, int head, int first_row,
                                         const STATE_T* from) {
#pragma unroll
        for (int p = 0; p < PASSES; ++p) {
#pragma unroll
            for (int j = 0; j < UNITS_OF_LANE; ++j) {
                if (!EXACT_LANES || !EXACT_ROWS) state[p][j] = {};
                if (has_row(first_row, p) && has_unit(threadIdx.x % LANES, j)) state[p][j].load_streamed(from + offset(p, j));
            }
        }
        // A dense row has a token to read even where its length is 0: these loads need not wait for the length.
        if (view.written == 0) return;
        const DATA_T* token = static_cast<const DATA_T*>(params.x) + view.row * params.x_row +
                              view.first_token * params.x_token + head * params.x_head;
#pragma unroll
        for (int p = 0; p < PASSES; ++p)
            if (has_row(first_row, p)) x[p] = token[first_row + p * ROWS_OF_PASS];
        scalars.load(params, view, head);
    }

    __device__ __forceinline__ void update(const SsmDecode& params, const RowView& view, int head, int first_row,
                                           STATE_T* to, const float (&B)[ELEMENTS], const float (&C)[ELEMENTS]) {
        const int lane = threadIdx.x % LANES;
        const HeadStep step = scalars.template step<SOFTPLUS>(params);
        float y[PASSES];
#pragma unroll
        for (int p = 0; p < PASSES; ++p) {
            y[p] = 0.0f;
            if (view.length > 0) {
                const float input = has_row(first_row, p) ? to_float(x[p]) : 0.0f;
                y[p] = fmaf(step.skip, input, update_row(state[p], step.decay, step.dt * input, B, C));
            }
#pragma unroll
            for (int j = 0; j < UNITS_OF_LANE; ++j)
                if (has_row(first_row, p) && has_unit(lane, j)) state[p][j].store_streamed(to + offset(p, j));
        }
        if (view.written == 0) return;
        DATA_T* out = static_cast<DATA_T*>(params.y) + view.row * params.y_row + view.first_token * params.y_token +
                      head * params.y_head;
        // Lane l of a row group writes pass l, so that the rows of a warp leave in one access.
#pragma unroll
        for (int first = 0; first < PASSES; first += LANES) {
            float mine = y[first];
#pragma unroll
            for (int p = first + 1; p < PASSES && p < first + LANES; ++p)
                if (lane == p - first) mine = y[p];
            const int row = first_row + (first + lane) * ROWS_OF_PASS;
            if (first + lane < PASSES && (EXACT_ROWS || row < HEAD_DIM)) out[row] = from_float<DATA_T>(mine);
        }
    }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) update_ssm_state_decode(const __grid_constant__ SsmDecode params) {
    const int head = blockIdx.y * params.heads_per_group + blockIdx.x / PARTS * HEADS;
    if (!LATE) let_later_kernels_start();
    if (PREFETCH) prefetch_state(params, head);
    wait_for_earlier_kernels();
    if (LATE == 1) let_later_kernels_start();
    const RowView view = row_view(params.rows, blockIdx.z);
    if (view.slot < 0) return;

    constexpr int HEAD = HEAD_DIM * STATE_SIZE;
    const int lane = threadIdx.x % LANES;
    const int first_row = (blockIdx.x % PARTS * (THREADS / 32) + threadIdx.x / 32) * ROWS_OF_WARP +
                          threadIdx.x % 32 / LANES;
    const int64_t at = int64_t(head) * HEAD + first_row * STATE_SIZE + lane * STATE_ACCESS;
    const STATE_T* from = static_cast<const STATE_T*>(params.state) + view.slot * params.state_slot + at;
    STATE_T* to = static_cast<STATE_T*>(params.state_out) + view.slot * params.state_out_slot + at;
    Tile tile;
    tile.load(params, view, head, first_row, from);
    GroupRow B_row, C_row;
    if (view.written > 0) {
        B_row.load(static_cast<const DATA_T*>(params.B) + view.row * params.B_row +
                       view.first_token * params.B_token + blockIdx.y * params.B_group, lane);
        C_row.load(static_cast<const DATA_T*>(params.C) + view.row * params.C_row +
                       view.first_token * params.C_token + blockIdx.y * params.C_group, lane);
    }
    if (LATE == 2) let_later_kernels_start();
    float B[ELEMENTS], C[ELEMENTS];
    B_row.unpack(B);
    C_row.unpack(C);
#pragma unroll
    for (int i = 0; i < HEADS; ++i) {
        Tile next;
        if (i + 1 < HEADS) next.load(params, view, head + i + 1, first_row, from + (i + 1) * HEAD);
        tile.update(params, view, head + i, first_row, to + i * HEAD, B, C);
        if (i + 1 < HEADS) tile = next;
    }
}
