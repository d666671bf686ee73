// Chunked state space duality (arXiv 2405.21060, section 6) on warp-level tensor core instructions, for sm_80 and up.
//
// A block walks the chunks of one row, one head, one slice of head_dim and one segment, with the fp32 state in registers:
//   y = ((C B^T) o decay o step) x + decay_from_start o (C state) + D x,   state = decay_total state + (B o write)^T x.
// Warp w owns tokens 16w..16w+15 of y, and of the transposed state [state_size][slice] every fourth tile of 16 rows.
//
// Macros: DATA_T, STATE_T, D_T, BIAS_T, HEAD_DIM, STATE_SIZE, SLICE (of head_dim; multiple of 16), STAGES (1 or 2),
// ALIGNED, PASS. PASS 0: one segment. 1: the states at the ends of all segments but the last, each from zero except the
// first, into scratch. 2: outputs of all segments, each from its entering state folded from scratch.
#include "common/launch.cuh"
#include "update_ssm_state/prefill_tiles.cuh"

using Shared = PrefillShared<DATA_T, STATE_SIZE, SLICE, STAGES>;
using Product = Mma<DATA_T>;

constexpr int STATE_ROWS = round_up(STATE_SIZE, 16);
constexpr int STATE_TILES = (STATE_ROWS / 16 + WARPS - 1) / WARPS;  // of 16 rows, of one warp
constexpr int SLICE_TILES = SLICE / 8;
constexpr int SLICES = (HEAD_DIM + SLICE - 1) / SLICE;
constexpr int STATE_REGISTERS = STATE_TILES * SLICE_TILES * 4;

// The sums of logarithms need more than a float where results have to agree to 1e-5.
struct WideSum {
    using type = double;
};
struct PlainSum {
    using type = float;
};
template <typename T>
struct LogSum : PlainSum {};
template <>
struct LogSum<float> : WideSum {};

// What this block computes.
struct Task {
    RowView row;
    int head, slice, segment;
    int columns;      // of head_dim, in this slice
    int first, last;  // chunks of this segment
    int chunks;       // of the row

    __device__ __forceinline__ Task(const PrefillParams& p) {
        row = row_view(p.rows, blockIdx.y);
        head = blockIdx.x / SLICES;
        slice = blockIdx.x % SLICES;
        segment = blockIdx.z;
        columns = min(SLICE, HEAD_DIM - slice * SLICE);
        chunks = (row.length + CHUNK - 1) / CHUNK;
        const int share = (chunks + p.segments - 1) / p.segments;
        first = min(chunks, segment * share);
        last = min(chunks, first + share);
    }
    // Index of (row, head, slice, segment) in the scratch memory.
    __device__ __forceinline__ int64_t scratch_index(const PrefillParams& p, int of_segment) const {
        return (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * p.segments + of_segment;
    }
    __device__ __forceinline__ float* scratch_state(const PrefillParams& p, int of_segment) const {
        return p.scratch + scratch_index(p, of_segment) * (STATE_REGISTERS * THREADS);
    }
    __device__ __forceinline__ float* scratch_decay(const PrefillParams& p, int of_segment) const {
        const int64_t states = static_cast<int64_t>(p.rows.rows) * gridDim.x * p.segments;
        return p.scratch + states * (STATE_REGISTERS * THREADS) + scratch_index(p, of_segment);
    }
};

// The transposed state [state_size][slice] of one block, in accumulators.
struct State {
    float value[STATE_TILES][SLICE_TILES][4];

    __device__ static __forceinline__ int row(int tile, int i) {
        return (tile * WARPS + threadIdx.x / 32) * 16 + threadIdx.x % 32 / 4 + i / 2 * 8;
    }
    __device__ static __forceinline__ int column(int tile, int i) { return tile * 8 + threadIdx.x % 4 * 2 + i % 2; }

    // access(element, row of state_size, column of the slice) for every element inside the state.
    template <typename ACCESS>
    __device__ __forceinline__ void each(int columns, ACCESS access) {
#pragma unroll
        for (int m = 0; m < STATE_TILES; ++m)
#pragma unroll
            for (int n = 0; n < SLICE_TILES; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (row(m, i) < STATE_SIZE && column(n, i) < columns) access(value[m][n][i], row(m, i), column(n, i));
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < STATE_REGISTERS; ++i) (&value[0][0][0])[i] = 0.0f;
    }
    __device__ __forceinline__ void load(const STATE_T* state, int columns) {
        clear();
        each(columns, [&](float& v, int n, int p) { v = to_float(state[p * STATE_SIZE + n]); });
    }
    __device__ __forceinline__ void store(STATE_T* state, int columns) {
        each(columns, [&](float& v, int n, int p) { state[p * STATE_SIZE + n] = from_float<STATE_T>(v); });
    }
    // value = value * factor + other, in the order of registers, in which states lie in scratch.
    __device__ __forceinline__ void fold(const float* other, float factor) {
        const float4* source = reinterpret_cast<const float4*>(other) + threadIdx.x;
#pragma unroll
        for (int m = 0; m < STATE_TILES; ++m)
#pragma unroll
            for (int n = 0; n < SLICE_TILES; ++n) {
                const float4 v = source[(m * SLICE_TILES + n) * THREADS];
                value[m][n][0] = value[m][n][0] * factor + v.x;
                value[m][n][1] = value[m][n][1] * factor + v.y;
                value[m][n][2] = value[m][n][2] * factor + v.z;
                value[m][n][3] = value[m][n][3] * factor + v.w;
            }
    }
    __device__ __forceinline__ void keep(float* other) const {
        float4* target = reinterpret_cast<float4*>(other) + threadIdx.x;
#pragma unroll
        for (int m = 0; m < STATE_TILES; ++m)
#pragma unroll
            for (int n = 0; n < SLICE_TILES; ++n)
                target[(m * SLICE_TILES + n) * THREADS] =
                    make_float4(value[m][n][0], value[m][n][1], value[m][n][2], value[m][n][3]);
    }
    // Rounded to the data type, for the next chunk's C * state.
    __device__ __forceinline__ void publish(DATA_T* tile) const {
#pragma unroll
        for (int m = 0; m < STATE_TILES; ++m)
#pragma unroll
            for (int n = 0; n < SLICE_TILES; ++n)
#pragma unroll
                for (int i = 0; i < 4; i += 2)
                    if (row(m, i) < STATE_ROWS) {
                        *reinterpret_cast<Vector<DATA_T, 2>*>(tile + Shared::Narrow::at(row(m, i), column(n, i))) = {
                            from_float<DATA_T>(value[m][n][i]), from_float<DATA_T>(value[m][n][i + 1])};
                    }
    }
    // state = total * state + (B o write)^T x over the `valid` tokens of a chunk.
    __device__ __forceinline__ void update(const Shared::Stage& in, const ChunkDecay& decay, int valid) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
        for (int i = 0; i < STATE_REGISTERS; ++i) (&value[0][0][0])[i] *= decay.total;
#pragma unroll
        for (int k = 0; k < CHUNK; k += Product::K) {
            if (k >= valid) break;
            Product::A written[STATE_TILES];
#pragma unroll
            for (int m = 0; m < STATE_TILES; ++m) {
                const int tile = min(m * WARPS + warp, STATE_ROWS / 16 - 1);
                written[m] = Product::load_a_scaled<Shared::Wide>(in.B, decay.write, tile * 16, k, lane);
            }
#pragma unroll
            for (int n = 0; n < SLICE_TILES; n += 2) {
                Product::B tokens[2];
                Product::load_b_transposed<Shared::Narrow>(tokens, in.x, n * 8, k, lane);
#pragma unroll
                for (int m = 0; m < STATE_TILES; ++m) {
                    if (m * WARPS + warp < STATE_ROWS / 16) {
                        Product::multiply(value[m][n], written[m], tokens[0]);
                        Product::multiply(value[m][n + 1], written[m], tokens[1]);
                    }
                }
            }
        }
    }
};

// Sixteen tokens of y of one chunk, in accumulators.
struct Output {
    float value[SLICE_TILES][4];

    __device__ __forceinline__ void compute(const Shared& shared, const Shared::Stage& in, const ChunkDecay& decay,
                                            float skip) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        float scores[CHUNK / 8][4] = {};
#pragma unroll
        for (int i = 0; i < SLICE_TILES * 4; ++i) (&value[0][0])[i] = 0.0f;
#pragma unroll
        for (int k = 0; k < STATE_ROWS; k += Product::K) {
            const Product::A c = Product::load_a<Shared::Wide>(in.C, warp * 16, k, lane);
#pragma unroll
            for (int j = 0; j < CHUNK / 16; ++j) {
                if (j > warp) break;  // later tokens than this warp's
                Product::B b[2];
                Product::load_b<Shared::Wide>(b, in.B, j * 16, k, lane);
                Product::multiply(scores[2 * j], c, b[0]);
                Product::multiply(scores[2 * j + 1], c, b[1]);
            }
#pragma unroll
            for (int n = 0; n < SLICE_TILES; n += 2) {
                Product::B s[2];
                Product::load_b_transposed<Shared::Narrow>(s, shared.state, n * 8, k, lane);
                Product::multiply(value[n], c, s[0]);
                Product::multiply(value[n + 1], c, s[1]);
            }
        }
        decayed(scores, decay, skip);
#pragma unroll
        for (int k = 0; k < CHUNK; k += Product::K) {
            if (k / 16 > warp) break;
            const Product::A weights = Product::a_from_accumulators(scores + k / 8);
#pragma unroll
            for (int n = 0; n < SLICE_TILES; n += 2) {
                Product::B tokens[2];
                Product::load_b_transposed<Shared::Narrow>(tokens, in.x, n * 8, k, lane);
                Product::multiply(value[n], weights, tokens[0]);
                Product::multiply(value[n + 1], weights, tokens[1]);
            }
        }
    }
    // What is read from the state decays from the chunk's start; scores[i][j] become weights of x[j], with D on the diagonal.
    __device__ __forceinline__ void decayed(float (&scores)[CHUNK / 8][4], const ChunkDecay& decay, float skip) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = warp * 16 + lane / 4 + half * 8;
            const float until_i = decay.log_decay[i], rest_i = decay.log_decay_rest[i];
            const float from_start = exp2_approx(until_i);
#pragma unroll
            for (int n = 0; n < SLICE_TILES; ++n) {
                value[n][2 * half] *= from_start;
                value[n][2 * half + 1] *= from_start;
            }
#pragma unroll
            for (int n = 0; n < CHUNK / 8; ++n) {
                if (n / 2 > warp) break;
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int j = n * 8 + lane % 4 * 2 + e;
                    float since_j = until_i - decay.log_decay[j];
                    if constexpr (sizeof(DATA_T) == 4) since_j += rest_i - decay.log_decay_rest[j];
                    float& score = scores[n][2 * half + e];
                    const float weight = score * exp2_approx(since_j) * decay.step[j];
                    score = j < i ? weight : (j == i ? weight + skip : 0.0f);
                }
            }
        }
    }
    // `valid` counts the tokens of the chunk; y points at its first token and the slice's first column.
    __device__ __forceinline__ void store(DATA_T* y, int64_t token_stride, int columns, int valid) const {
        const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int token = first + half * 8;
            if (token >= valid) break;
#pragma unroll
            for (int n = 0; n < SLICE_TILES; ++n) {
                const int column = n * 8 + lane % 4 * 2;
                if (column < columns) {
                    store_pair<DATA_T, ALIGNED>(y + token * token_stride + column, value[n][2 * half], value[n][2 * half + 1]);
                }
            }
        }
    }
};

// Where the tensors of a task begin: at the first token of its row, its head, group and slice.
struct Tensors {
    const DATA_T *x, *B, *C, *dt;
    DATA_T* y;
    const STATE_T* state;
    STATE_T* state_out;

    __device__ __forceinline__ Tensors(const PrefillParams& p, const Task& task) {
        const RowView& row = task.row;
        const int group = task.head / (p.heads / p.groups);
        const int64_t column = static_cast<int64_t>(task.head) * HEAD_DIM + task.slice * SLICE;
        x = static_cast<const DATA_T*>(p.x) + row.row * p.x_row + row.first_token * p.x_token + column;
        B = static_cast<const DATA_T*>(p.B) + row.row * p.B_row + row.first_token * p.B_token + group * STATE_SIZE;
        C = static_cast<const DATA_T*>(p.C) + row.row * p.C_row + row.first_token * p.C_token + group * STATE_SIZE;
        dt = static_cast<const DATA_T*>(p.dt) + row.row * p.dt_row + row.first_token * p.dt_token + task.head;
        y = static_cast<DATA_T*>(p.y) + row.row * p.y_row + row.first_token * p.y_token + column;
        state = static_cast<const STATE_T*>(p.state) + row.slot * p.state_slot + column * STATE_SIZE;
        state_out = static_cast<STATE_T*>(p.state_out) + row.slot * p.state_out_slot + column * STATE_SIZE;
    }
};

__device__ __forceinline__ void load_chunk(Shared::Stage& stage, const Tensors& in, const PrefillParams& p, const Task& task,
                                           int chunk) {
    const int64_t token = static_cast<int64_t>(chunk) * CHUNK;
    const int valid = min(CHUNK, task.row.length - chunk * CHUNK);
    load_tile<DATA_T, STATE_ROWS, Shared::Wide, ALIGNED>(stage.B, in.B + token * p.B_token, p.B_token, STATE_SIZE, valid);
    if constexpr (PASS != 1) {
        load_tile<DATA_T, STATE_ROWS, Shared::Wide, ALIGNED>(stage.C, in.C + token * p.C_token, p.C_token, STATE_SIZE, valid);
    }
    load_tile<DATA_T, SLICE, Shared::Narrow, ALIGNED>(stage.x, in.x + token * p.x_token, p.x_token, task.columns, valid);
    commit_copies();
}

// Padding tokens of a dense row, shared by the segments.
__device__ __forceinline__ void clear_padding(const Tensors& in, const PrefillParams& p, const Task& task) {
    const int tokens = task.row.written - task.row.length;
    for (int i = task.segment * THREADS + threadIdx.x; i < tokens * task.columns; i += p.segments * THREADS) {
        const int64_t token = task.row.length + i / task.columns;
        in.y[token * p.y_token + i % task.columns] = from_float<DATA_T>(0.0f);
    }
}

__device__ __forceinline__ void enter_segment(State& state, const Tensors& in, const PrefillParams& p, const Task& task) {
    const bool from_scratch = PASS == 2 && task.chunks > (task.chunks + p.segments - 1) / p.segments;
    if (PASS == 1 && task.segment > 0) {
        state.clear();
    } else if (!from_scratch) {
        state.load(in.state, task.columns);
    } else {
        state.clear();
        state.fold(task.scratch_state(p, task.segment == 0 ? 0 : 1), 0.0f);
        for (int s = 2; s <= task.segment; ++s) state.fold(task.scratch_state(p, s), *task.scratch_decay(p, s));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
update_ssm_state_prefill_mma(const __grid_constant__ PrefillParams p) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    let_later_kernels_start();
    wait_for_earlier_kernels();
    const Task task(p);
    if (task.row.slot < 0) return;
    const Tensors in(p, task);
    if (PASS != 1) clear_padding(in, p, task);
    if (task.row.length == 0) {
        if (PASS != 1 && task.segment == 0 && in.state != in.state_out) {
            for (int i = threadIdx.x; i < task.columns * STATE_SIZE; i += THREADS) in.state_out[i] = in.state[i];
        }
        return;
    }
    if (task.first >= task.last || (PASS == 1 && task.last == task.chunks)) return;

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    load_chunk(shared.stages[0], in, p, task, task.first);
    const HeadScalars head = {p.A[task.head] * 1.44269504088896340736f,
                              to_float(static_cast<const BIAS_T*>(p.dt_bias)[task.head])};
    const float skip = to_float(static_cast<const D_T*>(p.D)[task.head]);
    State state;
    enter_segment(state, in, p, task);
    if (PASS == 1 && task.segment == 0) state.keep(task.scratch_state(p, 0));
    if (PASS != 1) state.publish(shared.state);
    const auto valid_of = [&](int chunk) { return min(CHUNK, task.row.length - chunk * CHUNK); };
    RawSteps<DATA_T> raw;
    if (warp == 0) {
        raw.load(in.dt + static_cast<int64_t>(task.first) * CHUNK * p.dt_token, p.dt_token, valid_of(task.first), lane);
        store_decay<LogSum<DATA_T>::type>(shared.decay[task.first & 1], raw, head, p, valid_of(task.first), lane);
    }
    float segment_decay = 1.0f;
    for (int chunk = task.first; chunk < task.last; ++chunk) {
        const int valid = valid_of(chunk);
        const Shared::Stage& stage = shared.stages[(chunk - task.first) % STAGES];
        const ChunkDecay& decay = shared.decay[chunk & 1];
        const bool more = chunk + 1 < task.last;
        wait_copies<0>();
        __syncthreads();
        if (STAGES == 2 && more) load_chunk(shared.stages[(chunk + 1 - task.first) % STAGES], in, p, task, chunk + 1);
        if (warp == 0 && more) {
            raw.load(in.dt + (chunk + 1ll) * CHUNK * p.dt_token, p.dt_token, valid_of(chunk + 1), lane);
        }
        if constexpr (PASS != 1) {
            if (warp * 16 < valid) {
                Output output;
                output.compute(shared, stage, decay, skip);
                output.store(in.y + static_cast<int64_t>(chunk) * CHUNK * p.y_token, p.y_token, task.columns, valid);
            }
        }
        state.update(stage, decay, valid);
        segment_decay *= decay.total;
        if (warp == 0 && more) {
            store_decay<LogSum<DATA_T>::type>(shared.decay[(chunk + 1) & 1], raw, head, p, valid_of(chunk + 1), lane);
        }
        if ((PASS != 1 || STAGES == 1) && more) {
            __syncthreads();  // every warp has read the published state and, with one stage, the tiles
            if (PASS != 1) state.publish(shared.state);
            if (STAGES == 1) load_chunk(shared.stages[0], in, p, task, chunk + 1);
        }
    }
    if constexpr (PASS == 1) {
        state.keep(task.scratch_state(p, task.segment + 1));
        if (threadIdx.x == 0) *task.scratch_decay(p, task.segment + 1) = segment_decay;
    } else if (task.last == task.chunks) {
        state.store(in.state_out, task.columns);
    }
}
