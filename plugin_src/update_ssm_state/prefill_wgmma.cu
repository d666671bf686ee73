// Chunked state space duality (arXiv 2405.21060, section 6) on Hopper's warpgroup products, for 16-bit data.
//
// A block walks the chunks of one row for a slice (at most 64 columns of head_dim) of one head:
//   scores = C B^T;  y = decay_from_start o (C state^T) + (scores o decay o step + D on the diagonal) x
//   state = decay_total state + (x o write)^T B
// Only the last line depends on the chunk before, so each warpgroup has one kind of work. The first loads tiles and
// computes decays ahead. The second advances the state [slice][state_size] in fp32 registers and leaves its rounded
// copy in shared memory for each chunk. Two more take turns at the chunks' y. Tokens are the rows of scores and y: warp
// w of a warpgroup owns tokens 16w..16w+15.
//
// Macros: DATA_T, STATE_T, D_T, BIAS_T, HEAD_DIM, STATE_SIZE (at most 128), SLICE (at most 64, a multiple of 8). Every
// row of x, B, C and y starts at a multiple of 16 bytes.
#include "common/group_products.cuh"
#include "common/launch.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int UNITS_OF_BLOCK = 1;
#endif

#include "update_ssm_state/prefill_wgmma_tiles.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int LOADING = 0, ADVANCING = 1, WRITING = 2;  // the first warpgroup of each kind
constexpr int WRITERS = 2;                              // warpgroups of the last one
constexpr int LOADING_REGISTERS = 80, ADVANCING_REGISTERS = 128, WRITING_REGISTERS = 152;
constexpr int STAGES = 4;
constexpr int STATES = 3;  // rounded states that wait for their readers

struct Shared {
    struct Stage {
        unsigned char B[TILE_BYTES];
        unsigned char C[TILE_BYTES];  // and then y, in the first panel: a warp reads and writes its rows alone
        unsigned char x[SLICE_BYTES];
    };
    Stage stages[STAGES];
    unsigned char states[STATES][WIDTH * STATE_COLUMNS * 2];
    ChunkDecay decay[STAGES];
    BlockDecay blocks[STAGES];
    uint64_t full[STAGES], empty[STAGES];  // of stages
    uint64_t state_full[STATES], state_empty[STATES];

    __device__ __forceinline__ void init_barriers() {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(&full[s], 128 + 32);  // copies of each thread, decays of each lane of a warp
            barrier_init(&empty[s], 8);        // warps of the advancing warpgroup and of one that writes
        }
        for (int s = 0; s < STATES; ++s) {
            barrier_init(&state_full[s], 4);
            barrier_init(&state_empty[s], 4);
        }
    }
};

// The rows of a warp in a [64][STATE_COLUMNS] tile as left operands, which two products read from registers.
using Rows16 = unsigned[STATE_COLUMNS / 16][4];
__device__ __forceinline__ void load_rows_of_warp(Rows16& rows, const unsigned char* tile) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < STATE_COLUMNS / 16; ++k)
        Mma<DATA_T>::load_matrices(rows[k], reinterpret_cast<const DATA_T*>(tile),
                                   panel_unit<CHUNK>(row, 2 * k + lane / 16) / 2);
}

// D[64][64] of such rows and of rows of another tile.
__device__ __forceinline__ void start_row_products(float (&d)[32], const Rows16& a, const unsigned char* b) {
    const unsigned long long first = operand(b);
#pragma unroll
    for (int k = 0; k < STATE_COLUMNS / 16; ++k) {
        const unsigned long long further = k / 4 * (CHUNK * ROW_BYTES >> 4) + k % 4 * NEXT_16_COLUMNS;
        GroupProduct<DATA_T, CHUNK>::multiply(d, a[k], first + further, k != 0);
    }
    wgmma_commit();
}

// Tiles and decays of every chunk, ahead of their use. Warps take turns at the decays, so that each loads its time
// steps a whole round before it needs them.
__device__ __forceinline__ void load_chunks(Shared& shared, const PrefillParams& p, const Task& task) {
    constexpr int WARPS = 4;
    const int lane = threadIdx.x % 32;
    const Tensors in(p, task);
    const HeadScalars head = {p.A[task.head] * 1.44269504088896340736f,
                              to_float(static_cast<const BIAS_T*>(p.dt_bias)[task.head])};
    RawSteps<DATA_T> raw = {};
    int with_decays = threadIdx.x / 32;  // the next chunk whose decays are this warp's
    const auto load_steps = [&] {
        if (with_decays >= task.chunks) return;
        raw.load(in.dt + static_cast<int64_t>(with_decays) * CHUNK * p.dt_token, p.dt_token, task.valid(with_decays),
                 lane);
    };
    load_steps();
    RingPlace<STAGES> position;
    for (int chunk = 0; chunk < task.chunks; ++chunk) {
        Shared::Stage& stage = shared.stages[position.slot];
        const int64_t token = static_cast<int64_t>(chunk) * CHUNK;
        const int valid = task.valid(chunk);
        barrier_wait(&shared.empty[position.slot], position.parity ^ 1);
        load_tile<WIDTH>(stage.x, in.x + token * p.x_token, p.x_token, task.columns, valid);
        load_tile<STATE_COLUMNS>(stage.B, in.B + token * p.B_token, p.B_token, STATE_SIZE, valid);
        load_tile<STATE_COLUMNS>(stage.C, in.C + token * p.C_token, p.C_token, STATE_SIZE, valid);
        barrier_arrive_after_copies(&shared.full[position.slot]);
        if (chunk == with_decays) {
            store_decay<float>(shared.decay[position.slot], raw, head, p, valid, lane);
            store_block_decay(shared.blocks[position.slot], shared.decay[position.slot], lane);
            barrier_arrive(&shared.full[position.slot]);
            with_decays += WARPS;
            load_steps();
        }
        position.advance();
    }
}

// The state through the chunks of the row.
__device__ __forceinline__ void advance_state(Shared& shared, const PrefillParams& p, const Task& task) {
    const Tensors in(p, task);
    State state;
    state.load(in.state, task.columns);
    RingPlace<STATES> next;
    const auto publish = [&] {
        barrier_wait(&shared.state_empty[next.slot], next.parity ^ 1);
        state.publish(pieces(shared.states[next.slot]));
        barrier_arrive_of_warp_after_loads(&shared.state_full[next.slot]);
        next.advance();
    };
    publish();
    RingPlace<STAGES> position;
    for (int chunk = 0; chunk < task.chunks; ++chunk) {
        Shared::Stage& stage = shared.stages[position.slot];
        const ChunkDecay& decay = shared.decay[position.slot];
        unsigned written[CHUNK / 16][4];
        barrier_wait(&shared.full[position.slot], position.parity);
        fence_for_wgmma();
        state.scale(decay.total);
        state.start_update(written, stage.B, stage.x, decay);
        wgmma_wait<0>();
        in_flight(state.value);
        barrier_arrive_of_warp_after_loads(&shared.empty[position.slot]);
        position.advance();
        if (chunk + 1 < task.chunks) publish();
    }
    state.store(in.state_out, task.columns);
}

// y of every WRITERS-th chunk, from chunk `turn` on.
__device__ __forceinline__ void write_outputs(Shared& shared, const PrefillParams& p, const Task& task, int turn) {
    const Tensors in(p, task);
    const float skip = to_float(static_cast<const D_T*>(p.D)[task.head]);
    RingPlace<STAGES> position;
    RingPlace<STATES> entering;
    for (int i = 0; i < turn; ++i) position.advance(), entering.advance();
    for (int chunk = turn; chunk < task.chunks; chunk += WRITERS) {
        Shared::Stage& stage = shared.stages[position.slot];
        const ChunkDecay& decay = shared.decay[position.slot];
        float scores[32], y[32];
        unsigned weights[CHUNK / 16][4];
        if constexpr (GATED) {
            prefetch_gate<128>(in.gate + static_cast<int64_t>(chunk) * CHUNK * p.gate_token, p.gate_token,
                               task.columns, task.valid(chunk), threadIdx.x % 128);
        }
        barrier_wait(&shared.full[position.slot], position.parity);
        fence_for_wgmma();
        Rows16 C;
        load_rows_of_warp(C, stage.C);
        wgmma_fence();
        start_row_products(scores, C, stage.B);
        barrier_wait(&shared.state_full[entering.slot], entering.parity);
        start_row_products(y, C, shared.states[entering.slot]);
        const float from_start[2] = {exp2_approx(decay.log_decay[state_row(0)]),
                                     exp2_approx(decay.log_decay[state_row(1)])};
        wgmma_wait<1>();
        in_flight(scores);
        weights_from_scores(weights, scores, decay, shared.blocks[position.slot], skip);
        wgmma_wait<0>();
        in_flight(y);
        held_until_here(C);
        barrier_arrive_of_warp_after_loads(&shared.state_empty[entering.slot]);
#pragma unroll
        for (int i = 0; i < 32; ++i) y[i] *= from_start[i / 2 % 2];
        OutputGates gates;
        gates.load(in.gate + static_cast<int64_t>(chunk) * CHUNK * p.gate_token, p.gate_token, task.columns,
                   task.valid(chunk));
        wgmma_fence();
        const unsigned long long tokens = operand(stage.x);
#pragma unroll
        for (int k = 0; k < CHUNK / 16; ++k) multiply_columns<DATA_T>(y, weights[k], tokens + k * NEXT_16_ROWS);
        wgmma_commit();
        wgmma_wait<0>();
        in_flight(y);
        store_output(y, gates, stage.C, in.y + static_cast<int64_t>(chunk) * CHUNK * p.y_token, p.y_token, task.columns,
                     task.valid(chunk));
        barrier_arrive_of_warp_after_loads(&shared.empty[position.slot]);
#pragma unroll
        for (int i = 0; i < WRITERS; ++i) position.advance(), entering.advance();
    }
}

#endif

extern "C" __global__ void __launch_bounds__(512, 1)
    update_ssm_state_prefill_wgmma(const __grid_constant__ PrefillParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) unsigned char memory[];
    let_later_kernels_start();
    wait_for_earlier_kernels();
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Task task(p, 0);
    if (task.row.slot < 0) return;
    // The compiler is to know that it is uniform.
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
    if (threadIdx.x == 0) shared.init_barriers();
    __syncthreads();
    if (group == LOADING) {
        shrink_registers<LOADING_REGISTERS>();
        load_chunks(shared, p, task);
    } else if (group == ADVANCING) {
        grow_registers<ADVANCING_REGISTERS>();
        if (task.chunks > 0) advance_state(shared, p, task);
    } else {
        grow_registers<WRITING_REGISTERS>();
        if (group == WRITING) finish_padding(Tensors(p, task), p, task);
        write_outputs(shared, p, task, group - WRITING);
    }
#endif
}
