// Chunked state space duality (arXiv 2405.21060, section 6) on warp-level tensor core instructions, for 16-bit data and
// sm_80 and up, with states that never leave the registers.
//
// A block walks the chunks of one row, one slice of head_dim of one head, and one segment. A warp holds the state of
// sixteen columns of the slice in accumulators, which are operands of the outputs once they are rounded:
//   y = decay_from_start o (C state^T) + ((C B^T) o decay o step + D) x
//   state = decay_total state + (x o write)^T B.
// At the same time four other warps load the chunk after the next one and weigh the scores C B^T of the next.
//
// Macros: CHUNK_TOKENS (32), DATA_T (16 bits), STATE_T, D_T, BIAS_T, HEAD_DIM, STATE_SIZE (up to 128), SLICE (of
// head_dim; a multiple of 16 up to 64), GATE_ACCESS, PASS. PASS 0: one segment. 1: the states at the ends of all
// segments but the last, each from zero except the first, into scratch. 2: outputs of all segments, each from its
// entering state folded from scratch.
#include "common/launch.cuh"
#include "update_ssm_state/prefill_registers_state.cuh"
#include "update_ssm_state/prefill_registers_weights.cuh"

// Tiles, decays and weights of every chunk of the segment, ahead of their use. The warps take turns in three blocks of
// scores and the decays, so that each loads its time steps four chunks before it needs them.
__device__ __forceinline__ void help(Shared& shared, const PrefillParams& p, const Task& task) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Tensors in(p, task);
    const HeadScalars head = {p.A[task.head] * 1.44269504088896340736f,
                              to_float(static_cast<const BIAS_T*>(p.dt_bias)[task.head])};
    const float skip = to_float(static_cast<const D_T*>(p.D)[task.head]);
    RawSteps<DATA_T> raw = {};
    const auto load_steps = [&](int chunk) {
        if (chunk >= task.last) return;
        raw.load(in.dt + static_cast<int64_t>(chunk) * CHUNK * p.dt_token, p.dt_token, task.valid(chunk), lane);
    };
    const auto store_steps = [&](int chunk) {
        if (chunk >= task.last) return;
        store_decay<float>(shared.decay_of(chunk), raw, head, p, task.valid(chunk), lane);
        load_steps(chunk + 4);
    };
    // Of one chunk and the decays of the next.
    const auto weigh_chunk = [&](int chunk) {
        const int turn = (warp + chunk) % 4;
        if (turn == SCORE_BLOCKS) {
            store_steps(chunk + 1);
        } else if (PASS != 1 && chunk < task.last) {
            weigh(shared.weights_of(chunk), shared.projections_of(chunk), shared.decay_of(chunk), skip, turn);
        }
    };
    const int own = task.first + ((-warp - task.first) & 3);  // the first chunk whose decays are this warp's
    load_steps(own);
    for (int chunk = task.first; chunk <= task.first + AHEAD; ++chunk) load_chunks(shared, in, p, task, chunk);
    if (own == task.first) store_steps(own);
    wait_copies<AHEAD>();
    asm volatile("bar.sync 1, %0;" ::"n"(HELPERS) : "memory");
    weigh_chunk(task.first);
    wait_copies<AHEAD - 1>();
    __syncthreads();
    for (int chunk = task.first; chunk < task.last; ++chunk) {
        load_chunks(shared, in, p, task, chunk + AHEAD + 1);
        weigh_chunk(chunk + 1);
        wait_copies<AHEAD - 1>();
        __syncthreads();
    }
    wait_copies<0>();  // no thread ends before its copies
}

__device__ __forceinline__ void enter_segment(State& state, const Tensors& in, const PrefillParams& p,
                                              const Task& task) {
    if (PASS == 1 && task.segment > 0) {
        state.clear();
    } else if (PASS != 2 || task.chunks <= task.share) {
        state.load(in.state, task.columns);
    } else {
        state.clear();
        state.fold(task.scratch_state(p, task.segment == 0 ? 0 : 1), 0.0f);
        for (int s = 2; s <= task.segment; ++s) state.fold(task.scratch_state(p, s), *task.scratch_decay(p, s));
    }
}

// Outputs and state.
__device__ __forceinline__ void scan(Shared& shared, const PrefillParams& p, const Task& task, int thread) {
    const Tensors in(p, task);
    State state(thread);
    enter_segment(state, in, p, task);
    if (PASS == 1 && task.segment == 0) state.keep(task.scratch_state(p, 0));
    float segment_decay = 1.0f;
    // The first pair of a chunk's outputs that is this lane's, and the columns of the slice from it on.
    const int first = state.first + state.lane % 4 * 2, columns = task.columns - first;
    const int64_t token = static_cast<int64_t>(task.first) * CHUNK + state.lane / 4;
    DATA_T* y = in.y + token * p.y_token + first;
    const DATA_T* gate = in.gate + token * p.gate_token + first;
    __syncthreads();
    for (int chunk = task.first; chunk < task.last; ++chunk) {
        const Shared::Projections& projections = shared.projections_of(chunk);
        const ChunkDecay& decay = shared.decay_of(chunk);
        Inputs x(shared.x_of(chunk), state);
        if constexpr (PASS == 1) {
            segment_decay *= decay.total;
        } else {
            const int valid = task.valid(chunk) - state.lane / 4;
            Outputs outputs;
            outputs.read(state, projections.C, decay);
            OutputGates gates;
            gates.load(gate, p.gate_token, columns, valid);
            outputs.add(shared.weights_of(chunk), x, state.lane);
            outputs.store(y, p.y_token, gates, columns, valid);
            y += CHUNK * p.y_token;
            gate += CHUNK * p.gate_token;
        }
        x.scale(decay.write, state.lane);
        update(state, x, projections.B, decay.total);
        __syncthreads();
    }
    if constexpr (PASS == 1) {
        state.keep(task.scratch_state(p, task.segment + 1));
        if (thread == 0) *task.scratch_decay(p, task.segment + 1) = segment_decay;
    } else if (task.last == task.chunks) {
        state.store(in.state_out, task.columns);
    }
}

// Outputs of padding tokens, and the state of a row without tokens.
__device__ __forceinline__ void finish_padding(const PrefillParams& p, const Task& task) {
    const Tensors in(p, task);
    const int tokens = task.row.written - task.row.length;
    for (int i = task.segment * THREADS + threadIdx.x; i < tokens * task.columns; i += p.segments * THREADS) {
        const int64_t token = task.row.length + i / task.columns;
        in.y[token * p.y_token + i % task.columns] = from_float<DATA_T>(0.0f);
    }
    if (task.row.length == 0 && task.segment == 0 && in.state != in.state_out) {
        for (int i = threadIdx.x; i < task.columns * STATE_SIZE; i += THREADS) in.state_out[i] = in.state[i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
update_ssm_state_prefill_registers(const __grid_constant__ PrefillParams p) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    let_later_kernels_start();
    wait_for_earlier_kernels();
    const Task task(p, 0);
    if (task.row.slot < 0) return;
    if (PASS != 1) finish_padding(p, task);
    if (task.first >= task.last || (PASS == 1 && task.last == task.chunks)) return;
    if (threadIdx.x < HELPERS) {
        help(shared, p, task);
    } else {
        scan(shared, p, task, threadIdx.x - HELPERS);
    }
}
