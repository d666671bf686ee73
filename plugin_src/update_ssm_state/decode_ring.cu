// One token per row, states with rings: a state is read in every step and written once in RING steps.
//
// With S the state in memory, tokens 1 to m in the ring, token t = m + 1, and a_j the log decay of token j:
//     y_t = exp(a_1 + ... + a_t) S C_t + sum over j <= t of exp(a_{j+1} + ... + a_t) dt_j (B_j C_t) x_j + D x_t
// Token t is added to the ring; if it is the RING-th, all of them are written into the state. For other rows, as the
// parameters say, the ring is flushed into the state. Another kernel updates the ring's length, since all blocks of a
// row read it here. Dense rows have a token axis of one token at most, or are flushed.
//
// Macros: those of decode_group.cuh; D_T; BIAS_T; SOFTPLUS; GATED; DENSE (rows are
// dense); RING (at most 16). Grid: as of decode_lanes.cu.
#include "common/launch.cuh"
#include "common/ring.cuh"
#include "update_ssm_state/decode_group.cuh"
#include "update_ssm_state/decode_step.cuh"
#include "update_ssm_state/ring_params.cuh"

namespace {

constexpr int TEAMS = THREADS / LANES;                     // of LANES threads: each has a row of the state, or a token
constexpr int TOKENS_OF_TEAM = (RING + TEAMS - 1) / TEAMS;
constexpr int TOKENS_OF_LANE = (RING + LANES - 1) / LANES;
constexpr int THREADS_AT_ONCE = 384;

__device__ __forceinline__ int64_t token_at(const RowView& view, int64_t row, int64_t token) {
    return DENSE ? view.row * row : view.first_token * token;
}

// One head of one slot. The token of the step follows those of the ring.
struct Ring {
    DATA_T* x;
    DATA_T* B;
    float2* steps;
    const DATA_T* token_x;
    const DATA_T* token_B;
    int stored;

    __device__ __forceinline__ Ring(const SsmRing& ring, const RowView& view, int head, int group, int length) {
        const SsmDecode& params = ring.decode;
        const int64_t of_head = view.slot * ring.heads + head;
        x = static_cast<DATA_T*>(ring.x) + of_head * RING * HEAD_DIM;
        B = static_cast<DATA_T*>(ring.B) + (view.slot * ring.groups + group) * RING * STATE_SIZE;
        steps = reinterpret_cast<float2*>(ring.steps) + of_head * RING;
        token_x =
            static_cast<const DATA_T*>(params.x) + token_at(view, params.x_row, params.x_token) + head * params.x_head;
        token_B = static_cast<const DATA_T*>(params.B) + token_at(view, params.B_row, params.B_token) +
                  group * params.B_group;
        stored = length;
    }
    __device__ __forceinline__ const DATA_T* x_of(int j) const { return j < stored ? x + j * HEAD_DIM : token_x; }
    __device__ __forceinline__ const DATA_T* B_of(int j) const { return j < stored ? B + j * STATE_SIZE : token_B; }
};

// state = decay * state + sum over the tokens of factor_j x_j B_j. factors: lane j of a warp has that of token j.
__device__ __forceinline__ void flush(StateTile& tile, const Ring& ring, int count, float decay, float factors, int row,
                                      int lane) {
    float values[PASSES][ELEMENTS];
#pragma unroll
    for (int p = 0; p < PASSES; ++p) {
#pragma unroll
        for (int j = 0; j < UNITS_OF_LANE; ++j) tile.units[p][j].unpack(values[p] + j * STATE_ACCESS);
#pragma unroll
        for (int e = 0; e < ELEMENTS; ++e) values[p][e] *= decay;
    }
#pragma unroll 2
    for (int j = 0; j < count; ++j) {
        const float factor = __shfl_sync(0xffffffffu, factors, j);
        GroupRow packed;
        packed.load(ring.B_of(j), lane);
        float B[ELEMENTS];
        packed.unpack(B);
#pragma unroll
        for (int p = 0; p < PASSES; ++p) {
            const float x = StateTile::has_row(row, p) ? to_float(ring.x_of(j)[row + p * ROWS_OF_PASS]) : 0.0f;
#pragma unroll
            for (int e = 0; e < ELEMENTS; ++e) values[p][e] = fmaf(factor * x, B[e], values[p][e]);
        }
    }
#pragma unroll
    for (int p = 0; p < PASSES; ++p)
#pragma unroll
        for (int j = 0; j < UNITS_OF_LANE; ++j) tile.units[p][j].pack(values[p] + j * STATE_ACCESS);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, THREADS_AT_ONCE / THREADS)
    update_ssm_state_ring(const __grid_constant__ SsmRing ring_params) {
    __shared__ float scores[RING];  // B_j C_t
    const SsmDecode& params = ring_params.decode;
    const int head = blockIdx.y * params.heads_per_group + blockIdx.x / PARTS;
    wait_for_earlier_kernels();
    let_later_kernels_start();
    const RowView view = row_view(params.rows, blockIdx.z);
    if (view.slot < 0) return;
    const int lane = threadIdx.x % LANES, warp_lane = threadIdx.x % 32, team = threadIdx.x / LANES;
    const int row = blockIdx.x % PARTS * ROWS_OF_BLOCK + threadIdx.x / 32 * ROWS_OF_WARP + warp_lane / LANES;
    const bool has_token = view.length > 0 && view.length <= ring_params.most_added;
    if (view.length == 0 && !ring_params.flushes_empty) {
        const float zeros[PASSES] = {};
        if (DENSE && ring_params.most_added > 0)
            write_rows(static_cast<DATA_T*>(params.y) + view.row * params.y_row + head * params.y_head, zeros, row,
                       lane);
        return;
    }
    const Ring ring(ring_params, view, head, blockIdx.y, stored_tokens(ring_params.lengths, view.slot, RING));
    const int count = ring.stored + has_token;
    if (count == 0) return;

    const int64_t head_state = int64_t(head) * HEAD_DIM * STATE_SIZE;
    StateTile tile;
    tile.load(static_cast<const STATE_T*>(params.state) + view.slot * params.state_slot + head_state, nullptr, row,
              lane);

    float log_decay = 0.0f, dt = 0.0f;  // of token `warp_lane`
    if (warp_lane < ring.stored) {
        const float2 step = ring.steps[warp_lane];
        log_decay = step.x;
        dt = step.y;
    }
    if (!has_token) {
        const RingDecay decay(log_decay);
        flush(tile, ring, count, decay.of_state, decay.of_token * dt, row, lane);
#pragma unroll
        for (int p = 0; p < PASSES; ++p)
            tile.store(static_cast<STATE_T*>(params.state_out) + view.slot * params.state_out_slot + head_state,
                       nullptr, row, lane, p);
        return;
    }

    DATA_T x[PASSES], gate[PASSES], earlier[PASSES][TOKENS_OF_LANE];
#pragma unroll
    for (int p = 0; p < PASSES; ++p) {
        const int at = row + p * ROWS_OF_PASS;
        x[p] = gate[p] = from_float<DATA_T>(0.0f);
        if (StateTile::has_row(row, p)) {
            x[p] = ring.token_x[at];
            if (GATED)
                gate[p] = (static_cast<const DATA_T*>(params.gate) +
                           token_at(view, params.gate_row, params.gate_token) + int64_t(head) * HEAD_DIM)[at];
        }
#pragma unroll
        for (int i = 0; i < TOKENS_OF_LANE; ++i) {
            const int j = i * LANES + lane;
            earlier[p][i] = StateTile::has_row(row, p) && j < ring.stored ? ring.x[j * HEAD_DIM + at]
                                                                          : from_float<DATA_T>(0.0f);
        }
    }
    HeadScalars<DATA_T, D_T, BIAS_T> scalars;
    scalars.load(params, view, head);
    GroupRow C_row, B_rows[TOKENS_OF_TEAM];
    C_row.load(static_cast<const DATA_T*>(params.C) + token_at(view, params.C_row, params.C_token) +
                   blockIdx.y * params.C_group, lane);
#pragma unroll
    for (int i = 0; i < TOKENS_OF_TEAM; ++i) {
        B_rows[i] = {};
        if (i * TEAMS + team < count) B_rows[i].load(ring.B_of(i * TEAMS + team), lane);
    }
    float C[ELEMENTS];
    C_row.unpack(C);
#pragma unroll
    for (int i = 0; i < TOKENS_OF_TEAM; ++i) {
        float B[ELEMENTS], score = 0.0f;
        B_rows[i].unpack(B);
#pragma unroll
        for (int e = 0; e < ELEMENTS; ++e) score = fmaf(B[e], C[e], score);
        score = sum_of_row(score);
        if (lane == 0 && i * TEAMS + team < count) scores[i * TEAMS + team] = score;
    }
    const HeadStep step = scalars.template step<SOFTPLUS>(params);
    const float own_decay = scalars.A * step.dt;
    if (warp_lane == ring.stored) {
        log_decay = own_decay;
        dt = step.dt;
    }
    const RingDecay decay(log_decay);
    const float factors = decay.of_token * dt;
    __syncthreads();
    const float weights = warp_lane < count ? factors * scores[warp_lane] : 0.0f;
    const float own_weight = __shfl_sync(0xffffffffu, weights, ring.stored) + step.skip;
    float weight[TOKENS_OF_LANE];
#pragma unroll
    for (int i = 0; i < TOKENS_OF_LANE; ++i) {
        weight[i] = __shfl_sync(0xffffffffu, weights, (i * LANES + lane) % 32);
        if (i * LANES + lane >= ring.stored) weight[i] = 0.0f;
    }
    float y[PASSES];
#pragma unroll
    for (int p = 0; p < PASSES; ++p) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < UNITS_OF_LANE; ++j) {
            float values[STATE_ACCESS];
            tile.units[p][j].unpack(values);
#pragma unroll
            for (int e = 0; e < STATE_ACCESS; ++e) sum = fmaf(values[e], C[j * STATE_ACCESS + e], sum);
        }
        sum *= decay.of_state;
#pragma unroll
        for (int i = 0; i < TOKENS_OF_LANE; ++i) sum = fmaf(weight[i], to_float(earlier[p][i]), sum);
        y[p] = fmaf(own_weight, to_float(x[p]), sum_of_row(sum));
        if (GATED) y[p] *= silu(to_float(gate[p]));
    }
    write_rows(static_cast<DATA_T*>(params.y) + token_at(view, params.y_row, params.y_token) + head * params.y_head, y,
               row, lane);

    if (count == RING) {
        flush(tile, ring, count, decay.of_state, factors, row, lane);
#pragma unroll
        for (int p = 0; p < PASSES; ++p)
            tile.store(static_cast<STATE_T*>(params.state_out) + view.slot * params.state_out_slot + head_state,
                       nullptr, row, lane, p);
        return;
    }
    if (lane == 0) {
#pragma unroll
        for (int p = 0; p < PASSES; ++p)
            if (StateTile::has_row(row, p)) ring.x[ring.stored * HEAD_DIM + row + p * ROWS_OF_PASS] = x[p];
    }
    if (blockIdx.x % PARTS == 0 && threadIdx.x == 0) ring.steps[ring.stored] = make_float2(own_decay, step.dt);
    if (blockIdx.x == 0)  // of the heads that share B
        for (int n = threadIdx.x; n < STATE_SIZE; n += THREADS) ring.B[ring.stored * STATE_SIZE + n] = ring.token_B[n];
}
