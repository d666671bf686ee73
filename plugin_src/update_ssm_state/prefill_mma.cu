// Chunked state space duality (arXiv 2405.21060, section 6) on warp-level tensor core instructions, for sm_80 and up.
//
// A block walks the chunks of one row, one head, one slice of head_dim and one segment, with the fp32 state in
// registers:
//   y = ((C B^T) o decay o step) x + decay_from_start o (C state) + D x,   state = decay_total state + (B o write)^T x.
// A warp owns sixteen tokens of y (none where the chunk is shorter) and one of PARTS parts of their columns, and of the
// transposed state [state_size][slice] some tiles of 16 rows.
//
// Macros: CHUNK_TOKENS, DATA_T, STATE_T, D_T, BIAS_T, HEAD_DIM, STATE_SIZE, SLICE (of head_dim; multiple of
// 16 * PARTS), PARTS (1 or 2: 4 or 8 warps), STAGES (1 or 2, of B and x), ALIGNED, PASS. PASS 0: one segment. 1: the
// states at the ends of all segments but the last, each from zero except the first, into scratch. 2: outputs of all
// segments, each from its entering state folded from scratch.
#include "common/launch.cuh"
#include "update_ssm_state/prefill_mma_output.cuh"
#include "update_ssm_state/prefill_mma_state.cuh"

__device__ __forceinline__ Offsets offsets_of(const PrefillParams& p, const Task& task) {
    const RowView& row = task.row;
    const int group = task.head / (p.heads / p.groups);
    const int64_t column = static_cast<int64_t>(task.head) * HEAD_DIM + task.slice * SLICE;
    return {row.row * p.x_row + row.first_token * p.x_token + column,
            row.row * p.B_row + row.first_token * p.B_token + group * STATE_SIZE,
            row.row * p.C_row + row.first_token * p.C_token + group * STATE_SIZE,
            row.row * p.dt_row + row.first_token * p.dt_token + task.head,
            row.row * p.y_row + row.first_token * p.y_token + column,
            row.slot * p.state_slot + column * STATE_SIZE,
            row.slot * p.state_out_slot + column * STATE_SIZE};
}

__device__ __forceinline__ int64_t gate_offset_of(const PrefillParams& p, const Task& task) {
    return task.row.row * p.gate_row + task.row.first_token * p.gate_token +
           static_cast<int64_t>(task.head) * HEAD_DIM + task.slice * SLICE;
}

// The tensors of a block.
struct Tensors {
    const PrefillParams& p;
    const Offsets& at;

    __device__ __forceinline__ const DATA_T* x() const { return static_cast<const DATA_T*>(p.x) + at.x; }
    __device__ __forceinline__ const DATA_T* B() const { return static_cast<const DATA_T*>(p.B) + at.B; }
    __device__ __forceinline__ const DATA_T* C() const { return static_cast<const DATA_T*>(p.C) + at.C; }
    __device__ __forceinline__ const DATA_T* dt() const { return static_cast<const DATA_T*>(p.dt) + at.dt; }
    __device__ __forceinline__ DATA_T* y() const { return static_cast<DATA_T*>(p.y) + at.y; }
    __device__ __forceinline__ const STATE_T* state() const { return static_cast<const STATE_T*>(p.state) + at.state; }
    __device__ __forceinline__ STATE_T* state_out() const { return static_cast<STATE_T*>(p.state_out) + at.state_out; }
};

__device__ __forceinline__ void load_B_and_x(Shared::Stage& stage, const Tensors& in, const PrefillParams& p,
                                             const Task& task, int chunk) {
    const int64_t token = static_cast<int64_t>(chunk) * CHUNK;
    const int valid = task.valid(chunk);
    load_tile<DATA_T, STATE_ROWS, Shared::Wide, ALIGNED>(stage.B, in.B() + token * p.B_token, p.B_token, STATE_SIZE,
                                                         valid);
    load_tile<DATA_T, SLICE, Shared::Narrow, ALIGNED>(stage.x, in.x() + token * p.x_token, p.x_token, task.columns,
                                                      valid);
    commit_copies();
}

__device__ __forceinline__ void load_C(Shared& shared, const Tensors& in, const PrefillParams& p, const Task& task,
                                       int chunk) {
    const int64_t token = static_cast<int64_t>(chunk) * CHUNK;
    load_tile<DATA_T, STATE_ROWS, Shared::Wide, ALIGNED>(shared.C, in.C() + token * p.C_token, p.C_token, STATE_SIZE,
                                                         task.valid(chunk));
    commit_copies();
}

// Padding tokens of a dense row, shared by the segments.
__device__ __forceinline__ void clear_padding(const Tensors& in, const PrefillParams& p, const Task& task) {
    const int tokens = task.row.written - task.row.length;
    for (int i = task.segment * THREADS + threadIdx.x; i < tokens * task.columns; i += p.segments * THREADS) {
        const int64_t token = task.row.length + i / task.columns;
        in.y()[token * p.y_token + i % task.columns] = from_float<DATA_T>(0.0f);
    }
}

__device__ __forceinline__ void enter_segment(State& state, const Tensors& in, const PrefillParams& p,
                                              const Task& task) {
    const bool from_scratch = PASS == 2 && task.chunks > (task.chunks + p.segments - 1) / p.segments;
    if (PASS == 1 && task.segment > 0) {
        state.clear();
    } else if (!from_scratch) {
        state.load(in.state(), task.columns);
    } else {
        state.clear();
        state.fold(task.scratch_state(p, task.segment == 0 ? 0 : 1), 0.0f);
        for (int s = 2; s <= task.segment; ++s) state.fold(task.scratch_state(p, s), *task.scratch_decay(p, s));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, PARTS == 2 && STATE_REGISTERS <= 32 ? 2 : 1)
update_ssm_state_prefill_mma(const __grid_constant__ PrefillParams p) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    let_later_kernels_start();
    wait_for_earlier_kernels();
    const Task task(p);
    if (task.row.slot < 0) return;
    if (threadIdx.x == 0) {
        shared.offsets = offsets_of(p, task);
#if GATE_ACCESS > 0
        shared.gate = gate_offset_of(p, task);
#endif
    }
    __syncthreads();
    const Tensors in = {p, shared.offsets};
    if (PASS != 1) clear_padding(in, p, task);
    if (task.row.length == 0) {
        if (PASS != 1 && task.segment == 0 && in.state() != in.state_out()) {
            for (int i = threadIdx.x; i < task.columns * STATE_SIZE; i += THREADS) in.state_out()[i] = in.state()[i];
        }
        return;
    }
    if (task.first >= task.last || (PASS == 1 && task.last == task.chunks)) return;

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    load_B_and_x(shared.stages[0], in, p, task, task.first);
    if constexpr (PASS != 1) load_C(shared, in, p, task, task.first);
    RawSteps<DATA_T> raw = {};
    const auto load_steps = [&](int chunk) {
        raw.load(in.dt() + static_cast<int64_t>(chunk) * CHUNK * p.dt_token, p.dt_token, task.valid(chunk), lane);
    };
    const auto store_steps = [&](int chunk) {
        store_decay<LogSum<DATA_T>::type>(shared.decay[chunk & 1], raw, shared.head, p, task.valid(chunk), lane);
        if (chunk + 1 < task.last) load_steps(chunk + 1);
    };
    if (warp == DECAY_WARP) {
        shared.head = {p.A[task.head] * 1.44269504088896340736f,
                       to_float(static_cast<const BIAS_T*>(p.dt_bias)[task.head])};
        shared.skip = to_float(static_cast<const D_T*>(p.D)[task.head]);
        __syncwarp();  // every lane writes the same
        load_steps(task.first);
    }
    State state;
    enter_segment(state, in, p, task);
    if (PASS == 1 && task.segment == 0) state.keep(task.scratch_state(p, 0));
    if (PASS != 1) state.publish(shared.state);
    if (PASS != 1 && PARTS == 2) {  // weights of later tokens: they stay zero
        for (int i = threadIdx.x; i < sizeof(shared.weights) / 16; i += THREADS)
            reinterpret_cast<uint4*>(shared.weights)[i] = make_uint4(0, 0, 0, 0);
    }
    if (warp == DECAY_WARP) store_steps(task.first);
    float segment_decay = 1.0f;
    for (int chunk = task.first; chunk < task.last; ++chunk) {
        Shared::Stage& stage = shared.stages[(chunk - task.first) % STAGES];
        const ChunkDecay& decay = shared.decay[chunk & 1];
        const bool more = chunk + 1 < task.last;
        wait_copies<0>();
        __syncthreads();
        if (STAGES == 2 && more) load_B_and_x(shared.stages[(chunk + 1 - task.first) % STAGES], in, p, task, chunk + 1);
        segment_decay *= decay.total;
        if constexpr (PASS == 1) {
            if (warp == DECAY_WARP && more) store_steps(chunk + 1);
            state.update(stage, decay);
        } else {
            Output output;
            const bool has_tokens = output.tokens * 16 < task.valid(chunk);
            if (has_tokens) {
                output.read(shared, stage);
                output.decayed(decay, shared.skip);
                if constexpr (PARTS == 2) output.publish(shared.weights);
            }
            if (warp == DECAY_WARP && more) store_steps(chunk + 1);
            __syncthreads();  // weights are there; every warp has read C and the published state
            if (more) load_C(shared, in, p, task, chunk + 1);
            if (has_tokens) output.add(shared, stage);
            state.update(stage, decay);
            if (more) state.publish(shared.state);
#if GATE_ACCESS > 0
            if (has_tokens) {
                output.multiply(static_cast<const DATA_T*>(p.gate) + shared.gate +
                                    static_cast<int64_t>(chunk) * CHUNK * p.gate_token,
                                p.gate_token, task.columns, task.valid(chunk));
            }
#endif
            if (has_tokens) {
                output.store(in.y() + static_cast<int64_t>(chunk) * CHUNK * p.y_token, p.y_token, task.columns,
                             task.valid(chunk));
            }
        }
        if (STAGES == 1 && more) {
            __syncthreads();  // every warp has read the tiles
            load_B_and_x(shared.stages[0], in, p, task, chunk + 1);
        }
    }
    if constexpr (PASS == 1) {
        state.keep(task.scratch_state(p, task.segment + 1));
        if (threadIdx.x == 0) *task.scratch_decay(p, task.segment + 1) = segment_decay;
    } else if (task.last == task.chunks) {
        state.store(in.state_out(), task.columns);
    }
}
