// The formulas of prefill_wgmma.cu for rows in segments that are computed at the same time, where whole rows would
// leave multiprocessors idle.
//
// A block walks the chunks of one row and one segment for two units, which share B and C. A unit is a slice (at most 64
// columns of head_dim) of one head, and has a warpgroup; another warpgroup loads tiles and computes decays ahead.
// Tokens are the rows of scores and y, so that warp w of a warpgroup owns tokens 16w..16w+15; the state
// [slice][state_size] is in fp32 registers, and its rounded copy in shared memory.
//
// Macros: those of prefill_wgmma.cu, and PASS. 1: the states at the ends of all segments but the last, each from zero
// except the first, into scratch. 2: outputs of all segments, each from its entering state folded from scratch.
#include "common/launch.cuh"

constexpr int UNITS_OF_BLOCK = 2;

#include "update_ssm_state/prefill_wgmma_tiles.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int PRODUCER_REGISTERS = 88, CONSUMER_REGISTERS = 208;
constexpr int STAGES = 3;

struct Shared {
    struct Stage {
        unsigned char B[TILE_BYTES];
        unsigned char C[TILE_BYTES];
        unsigned char x[UNITS_OF_BLOCK][SLICE_BYTES];
    };
    Stage stages[STAGES];
    unsigned char state[UNITS_OF_BLOCK][WIDTH * STATE_COLUMNS * 2];
    ChunkDecay decay[STAGES][UNITS_OF_BLOCK];
    BlockDecay blocks[STAGES][UNITS_OF_BLOCK];
    uint64_t full[STAGES];   // the stage holds a chunk
    uint64_t empty[STAGES];  // the stage is no longer read
};

// D[64][64] of rows of two [64][STATE_COLUMNS] tiles.
__device__ __forceinline__ void start_row_products(float (&d)[32], const unsigned char* a, const unsigned char* b) {
    const unsigned long long first = operand(a), second = operand(b);
#pragma unroll
    for (int k = 0; k < STATE_COLUMNS / 16; ++k) {
        const unsigned long long further = k / 4 * (CHUNK * ROW_BYTES >> 4) + k % 4 * NEXT_16_COLUMNS;
        multiply_rows<DATA_T>(d, first + further, second + further, k != 0);
    }
    wgmma_commit();
}

__device__ __forceinline__ void synchronize_warpgroup() {
    asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / 128) : "memory");
}

__device__ __forceinline__ void enter_segment(State& state, const Tensors& in, const PrefillParams& p,
                                              const Task& task) {
    if (PASS == 1 && task.segment > 0) {
        state.clear();
    } else if (PASS == 1 || task.chunks <= task.share) {
        state.load(in.state, task.columns);
    } else {
        state.clear();
        state.fold(task.scratch_state(p, task.segment == 0 ? 0 : 1), 0.0f);
        for (int s = 2; s <= task.segment; ++s) state.fold(task.scratch_state(p, s), *task.scratch_decay(p, s));
    }
}

// The first warpgroup: tiles and decays of every chunk of the segment, ahead of their use. The decays of a unit and
// chunk are the work of one warp, and two take turns, so that each loads its time steps two chunks before it needs
// them.
__device__ __forceinline__ void produce(Shared& shared, const PrefillParams& p, const Task& task) {
    constexpr int TURNS = 4 / UNITS_OF_BLOCK;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, unit = warp % UNITS_OF_BLOCK;
    const Task other(p, UNITS_OF_BLOCK - 1);
    const Tensors in(p, task), in_other(p, other);
    const int head_index = unit ? other.head : task.head;
    const HeadScalars head = {p.A[head_index] * 1.44269504088896340736f,
                              to_float(static_cast<const BIAS_T*>(p.dt_bias)[head_index])};
    const DATA_T* dt = unit ? in_other.dt : in.dt;
    RawSteps<DATA_T> raw = {};
    int with_decays = task.first + warp / UNITS_OF_BLOCK;  // the next chunk whose decays are this warp's
    const auto load_steps = [&] {
        if (with_decays >= task.last) return;
        raw.load(dt + static_cast<int64_t>(with_decays) * CHUNK * p.dt_token, p.dt_token, task.valid(with_decays),
                 lane);
    };
    load_steps();
    RingPlace<STAGES> position;
    for (int chunk = task.first; chunk < task.last; ++chunk) {
        Shared::Stage& stage = shared.stages[position.slot];
        const int64_t token = static_cast<int64_t>(chunk) * CHUNK;
        const int valid = task.valid(chunk);
        barrier_wait(&shared.empty[position.slot], position.parity ^ 1);
        load_tile<STATE_COLUMNS>(stage.B, in.B + token * p.B_token, p.B_token, STATE_SIZE, valid);
        if constexpr (PASS == 2)
            load_tile<STATE_COLUMNS>(stage.C, in.C + token * p.C_token, p.C_token, STATE_SIZE, valid);
        load_tile<WIDTH>(stage.x[0], in.x + token * p.x_token, p.x_token, task.columns, valid);
        load_tile<WIDTH>(stage.x[1], in_other.x + token * p.x_token, p.x_token, other.columns, valid);
        barrier_arrive_after_copies(&shared.full[position.slot]);
        if (chunk == with_decays) {
            store_decay<float>(shared.decay[position.slot][unit], raw, head, p, valid, lane);
            if (PASS == 2)
                store_block_decay(shared.blocks[position.slot][unit], shared.decay[position.slot][unit], lane);
            barrier_arrive(&shared.full[position.slot]);
            with_decays += TURNS;
            load_steps();
        }
        position.advance();
    }
}

// The other warpgroups: one unit each.
__device__ __forceinline__ void consume(Shared& shared, const PrefillParams& p, const Task& task, int unit) {
    const Tensors in(p, task);
    const float skip = to_float(static_cast<const D_T*>(p.D)[task.head]);
    State state;
    if (PASS == 2) wait_for_earlier_kernels();
    enter_segment(state, in, p, task);
    if (PASS == 1 && task.segment == 0) state.keep(task.scratch_state(p, 0));
    const unsigned published = pieces(shared.state[unit]);
    if (PASS == 2) {
        state.publish(published);
        synchronize_warpgroup();
    }
    float segment_decay = 1.0f;
    RingPlace<STAGES> position;
    for (int chunk = task.first; chunk < task.last; ++chunk) {
        Shared::Stage& stage = shared.stages[position.slot];
        const ChunkDecay& decay = shared.decay[position.slot][unit];
        if constexpr (GATED) {
            prefetch_gate<128>(in.gate + static_cast<int64_t>(chunk) * CHUNK * p.gate_token, p.gate_token,
                               task.columns, task.valid(chunk), threadIdx.x % 128);
        }
        barrier_wait(&shared.full[position.slot], position.parity);
        fence_for_wgmma();
        unsigned written[CHUNK / 16][4];
        state.scale(decay.total);
        if constexpr (PASS == 1) {
            state.start_update(written, stage.B, stage.x[unit], decay);
            segment_decay *= decay.total;
            wgmma_wait<0>();
            in_flight(state.value);
        } else {
            float scores[32], y[32];
            unsigned weights[CHUNK / 16][4];
            wgmma_fence();
            start_row_products(scores, stage.C, stage.B);
            start_row_products(y, stage.C, shared.state[unit]);
            state.start_update(written, stage.B, stage.x[unit], decay);
            const float from_start[2] = {exp2_approx(decay.log_decay[state_row(0)]),
                                         exp2_approx(decay.log_decay[state_row(1)])};
            wgmma_wait<2>();
            in_flight(scores);
            weights_from_scores(weights, scores, decay, shared.blocks[position.slot][unit], skip);
            wgmma_wait<1>();
            in_flight(y);
#pragma unroll
            for (int i = 0; i < 32; ++i) y[i] *= from_start[i / 2 % 2];
            OutputGates gates;
            gates.load(in.gate + static_cast<int64_t>(chunk) * CHUNK * p.gate_token, p.gate_token, task.columns,
                       task.valid(chunk));
            wgmma_fence();
            const unsigned long long tokens = operand(stage.x[unit]);
#pragma unroll
            for (int k = 0; k < CHUNK / 16; ++k) multiply_columns<DATA_T>(y, weights[k], tokens + k * NEXT_16_ROWS);
            wgmma_commit();
            wgmma_wait<1>();
            in_flight(state.value);
            synchronize_warpgroup();  // every warp has read the published state
            state.publish(published);
            wgmma_wait<0>();
            in_flight(y);
            synchronize_warpgroup();  // the new one is there, and every warp has read x
            store_output(y, gates, stage.x[unit], in.y + static_cast<int64_t>(chunk) * CHUNK * p.y_token, p.y_token,
                         task.columns, task.valid(chunk));
        }
        barrier_arrive(&shared.empty[position.slot]);
        position.advance();
    }
    if constexpr (PASS == 1) {
        state.keep(task.scratch_state(p, task.segment + 1));
        if (threadIdx.x % 128 == 0) *task.scratch_decay(p, task.segment + 1) = segment_decay;
    } else if (task.last == task.chunks) {
        state.store(in.state_out, task.columns);
    }
}

#endif

extern "C" __global__ void __launch_bounds__(128 * (1 + UNITS_OF_BLOCK), 1)
update_ssm_state_prefill_segments(const __grid_constant__ PrefillParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) unsigned char memory[];
    // Pass 2 may start when pass 1 has waited for everything before it, so that only the states wait for pass 1.
    if (PASS == 1) wait_for_earlier_kernels();
    let_later_kernels_start();
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int group = threadIdx.x / 128, unit = max(0, group - 1);
    const Task task(p, unit);
    if (task.row.slot < 0) return;
    if (PASS == 2 && group > 0 && task.columns > 0) finish_padding(Tensors(p, task), p, task);
    if (task.first >= task.last || (PASS == 1 && task.last == task.chunks)) return;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(&shared.full[s], 128 + 32 * UNITS_OF_BLOCK);  // copies of each thread, decays of each lane
            barrier_init(&shared.empty[s], 128 * UNITS_OF_BLOCK);
        }
    }
    __syncthreads();
    if (group == 0) {
        shrink_registers<PRODUCER_REGISTERS>();
        produce(shared, p, task);
    } else {
        grow_registers<CONSUMER_REGISTERS>();
        consume(shared, p, task, unit);
    }
#endif
}
