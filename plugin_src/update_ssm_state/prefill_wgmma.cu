// Chunked state space duality (arXiv 2405.21060, section 6) on Hopper's warpgroup products, for 16-bit data.
//
// A block walks the chunks of one row and one segment for one or two units, which share B and C. A unit is a slice (at most 64
// columns of head_dim) of one head, and has a warpgroup; another warpgroup loads tiles and computes decays ahead. Tokens are the rows of scores and y, so that warp w of a warpgroup
// owns tokens 16w..16w+15; the state [slice][state_size] is in fp32 registers, and its rounded copy in shared memory.
//   scores = C B^T;  y = decay_from_start o (C state^T) + (scores o decay o step + D on the diagonal) x
//   state = decay_total state + (x o write)^T B
//
// Macros: DATA_T, STATE_T, D_T, BIAS_T, HEAD_DIM, STATE_SIZE (at most 128), SLICE (at most 64, a multiple of 8), UNITS_OF_BLOCK (of a
// block: 1 or 2), PASS as in prefill_mma.cu. Every row of x, B, C and y starts at a multiple of 16 bytes.
#include "common/launch.cuh"
#include "common/mbarrier.cuh"
#include "common/mma.cuh"
#include "common/wgmma.cuh"
#include "update_ssm_state/prefill_decay.cuh"

constexpr int THREADS = 128 * (1 + UNITS_OF_BLOCK);
constexpr int PRODUCER_REGISTERS = 88, CONSUMER_REGISTERS = 208;
constexpr int STAGES = UNITS_OF_BLOCK == 1 ? 4 : 3;
constexpr int WIDTH = 64;                              // columns of a slice in shared memory
constexpr int STATE_COLUMNS = STATE_SIZE > 64 ? 128 : 64;  // of B, C and the state in shared memory
constexpr int SLICES = (HEAD_DIM + SLICE - 1) / SLICE;
constexpr int STATE_REGISTERS = STATE_COLUMNS / 2;
constexpr int TILE_BYTES = CHUNK * STATE_COLUMNS * 2;
constexpr int SLICE_BYTES = CHUNK * WIDTH * 2;

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
    unsigned long long full[STAGES];   // the stage holds a chunk
    unsigned long long empty[STAGES];  // nobody reads the stage any more
};

// A stage and the parity of its current phase.
struct Position {
    int slot = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance() {
        slot = slot == STAGES - 1 ? 0 : slot + 1;
        parity ^= slot == 0;
    }
};

// What one unit computes.
struct Task {
    RowView row;
    int group, head, slice, segment;
    int unit_index;      // of the row, counted over its blocks
    int columns;         // of head_dim in this slice; 0 for a warpgroup without work
    int first, last;     // chunks of this segment
    int chunks, share;   // of the row, of a segment

    __device__ __forceinline__ Task(const PrefillParams& p, int unit_of_block) {
        const int group_units = p.heads / p.groups * SLICES;
        const int group_blocks = (group_units + UNITS_OF_BLOCK - 1) / UNITS_OF_BLOCK;
        row = row_view(p.rows, blockIdx.y);
        group = blockIdx.x / group_blocks;
        const int unit = blockIdx.x % group_blocks * UNITS_OF_BLOCK + unit_of_block;
        head = group * (p.heads / p.groups) + unit / SLICES;
        slice = unit % SLICES;
        unit_index = blockIdx.x * UNITS_OF_BLOCK + unit_of_block;
        segment = blockIdx.z;
        columns = unit < group_units ? min(SLICE, HEAD_DIM - slice * SLICE) : 0;
        if (columns == 0) head = group * (p.heads / p.groups);
        chunks = (row.length + CHUNK - 1) / CHUNK;
        share = (chunks + p.segments - 1) / p.segments;
        first = min(chunks, segment * share);
        last = min(chunks, first + share);
    }
    __device__ __forceinline__ int valid(int chunk) const { return min(CHUNK, row.length - chunk * CHUNK); }
    __device__ __forceinline__ int64_t scratch_index(const PrefillParams& p, int of_segment) const {
        return (static_cast<int64_t>(blockIdx.y) * gridDim.x * UNITS_OF_BLOCK + unit_index) * p.segments + of_segment;
    }
    __device__ __forceinline__ float* scratch_state(const PrefillParams& p, int of_segment) const {
        return p.scratch + scratch_index(p, of_segment) * (STATE_REGISTERS * 128);
    }
    __device__ __forceinline__ float* scratch_decay(const PrefillParams& p, int of_segment) const {
        const int64_t states = static_cast<int64_t>(p.rows.rows) * gridDim.x * UNITS_OF_BLOCK * p.segments;
        return p.scratch + states * (STATE_REGISTERS * 128) + scratch_index(p, of_segment);
    }
};

struct Tensors {
    const DATA_T *x, *B, *C, *dt;
    DATA_T* y;
    const STATE_T* state;
    STATE_T* state_out;

    __device__ __forceinline__ Tensors(const PrefillParams& p, const Task& task) {
        const RowView& row = task.row;
        const int64_t column = static_cast<int64_t>(task.head) * HEAD_DIM + task.slice * SLICE;
        x = static_cast<const DATA_T*>(p.x) + row.row * p.x_row + row.first_token * p.x_token + column;
        B = static_cast<const DATA_T*>(p.B) + row.row * p.B_row + row.first_token * p.B_token + task.group * STATE_SIZE;
        C = static_cast<const DATA_T*>(p.C) + row.row * p.C_row + row.first_token * p.C_token + task.group * STATE_SIZE;
        dt = static_cast<const DATA_T*>(p.dt) + row.row * p.dt_row + row.first_token * p.dt_token + task.head;
        y = static_cast<DATA_T*>(p.y) + row.row * p.y_row + row.first_token * p.y_token + column;
        state = static_cast<const STATE_T*>(p.state) + row.slot * p.state_slot + column * STATE_SIZE;
        state_out = static_cast<STATE_T*>(p.state_out) + row.slot * p.state_out_slot + column * STATE_SIZE;
    }
};

// `valid` rows of a [CHUNK][COLUMNS] tile, of which `columns` are read, zeros elsewhere.
template <int COLUMNS>
__device__ __forceinline__ void load_tile(unsigned char* tile, const DATA_T* source, int64_t row_stride, int columns,
                                          int valid) {
    constexpr int UNITS_OF_ROW = COLUMNS / 8, ROWS = 128 / UNITS_OF_ROW;
    const int first = threadIdx.x / UNITS_OF_ROW, unit = threadIdx.x % UNITS_OF_ROW;
    const DATA_T* from = source + first * row_stride + unit * 8;
#pragma unroll
    for (int i = 0; i < CHUNK / ROWS; ++i) {
        const int row = first + i * ROWS;
        const bool inside = row < valid && unit * 8 < columns;
        copy_async_16(tile + panel_unit<CHUNK>(row, unit), inside ? from : source, inside);
        from += ROWS * row_stride;
    }
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Row (column of the slice) and first column (of state_size) of accumulators 4 * n + 2 * half, + 1.
__device__ __forceinline__ int state_row(int half) { return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + half * 8; }
__device__ __forceinline__ int pair_column(int n) { return n * 8 + threadIdx.x % 4 * 2; }

// Where this lane's row of 8-column tiles n and n + 1 (n even) lies in a tile of 64 rows: pieces() ^ 16 * (n % 8), in the
// panel of tile n.
__device__ __forceinline__ unsigned pieces(const unsigned char* tile) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
    return shared_address(tile) + row * ROW_BYTES + (lane / 16 ^ (row & 7)) * 16;
}

// Eight accumulators, of tiles n and n + 1, rounded to the data type.
__device__ __forceinline__ void store_pieces(unsigned pieces, const float* d, int n) {
    store_matrices((pieces ^ n % 8 * 16) + n / 8 * (CHUNK * ROW_BYTES), Mma<DATA_T>::pack(d[0], d[1]),
                   Mma<DATA_T>::pack(d[2], d[3]), Mma<DATA_T>::pack(d[4], d[5]), Mma<DATA_T>::pack(d[6], d[7]));
}

// Loads and stores of the state [slice][state_size] of one warpgroup.
struct State {
    float value[STATE_REGISTERS];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < STATE_REGISTERS; ++i) value[i] = 0.0f;
    }
    __device__ __forceinline__ void load(const STATE_T* state, int columns) {
#pragma unroll
        for (int i = 0; i < STATE_REGISTERS; i += 2) {
            const int row = state_row(i / 2 % 2), column = pair_column(i / 4);
            Vector<STATE_T, 2> pair = {from_float<STATE_T>(0.0f), from_float<STATE_T>(0.0f)};
            if (row < columns && column < STATE_SIZE) {
                pair = *reinterpret_cast<const Vector<STATE_T, 2>*>(state + row * STATE_SIZE + column);
            }
            value[i] = to_float(pair.data[0]);
            value[i + 1] = to_float(pair.data[1]);
        }
    }
    __device__ __forceinline__ void store(STATE_T* state, int columns) const {
#pragma unroll
        for (int i = 0; i < STATE_REGISTERS; i += 2) {
            const int row = state_row(i / 2 % 2), column = pair_column(i / 4);
            if (row < columns && column < STATE_SIZE) {
                *reinterpret_cast<Vector<STATE_T, 2>*>(state + row * STATE_SIZE + column) = {
                    from_float<STATE_T>(value[i]), from_float<STATE_T>(value[i + 1])};
            }
        }
    }
    // value = value * factor + other, in the order of registers, in which states lie in scratch.
    __device__ __forceinline__ void fold(const float* other, float factor) {
        const float4* source = reinterpret_cast<const float4*>(other) + threadIdx.x % 128;
#pragma unroll
        for (int i = 0; i < STATE_REGISTERS; i += 4) {
            const float4 v = source[i / 4 * 128];
            value[i] = value[i] * factor + v.x;
            value[i + 1] = value[i + 1] * factor + v.y;
            value[i + 2] = value[i + 2] * factor + v.z;
            value[i + 3] = value[i + 3] * factor + v.w;
        }
    }
    __device__ __forceinline__ void keep(float* other) const {
        float4* target = reinterpret_cast<float4*>(other) + threadIdx.x % 128;
#pragma unroll
        for (int i = 0; i < STATE_REGISTERS; i += 4) {
            target[i / 4 * 128] = make_float4(value[i], value[i + 1], value[i + 2], value[i + 3]);
        }
    }
    // Rounded to the data type, for the next chunk's C * state^T.
    __device__ __forceinline__ void publish(unsigned tile_pieces) const {
#pragma unroll
        for (int i = 0; i < STATE_REGISTERS; i += 8) store_pieces(tile_pieces, value + i, i / 4);
        fence_for_wgmma();
    }
    __device__ __forceinline__ void scale(float factor) {
#pragma unroll
        for (int i = 0; i < STATE_REGISTERS; ++i) value[i] *= factor;
    }
    // Starts state += (x o write)^T B; `written` is in use until the products are done.
    __device__ __forceinline__ void start_update(unsigned (&written)[CHUNK / 16][4], const Shared::Stage& in,
                                                 const unsigned char* x, const ChunkDecay& decay) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, t = lane % 4;
        const int first = panel_unit<CHUNK>(lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2);
#pragma unroll
        for (int k = 0; k < CHUNK / 16; ++k) {  // x transposed: 16 columns of the slice by 16 tokens
            Mma<DATA_T>::load_transposed(written[k], reinterpret_cast<const DATA_T*>(x), first / 2 + k * 16 * PANEL);
        }
#pragma unroll
        for (int k = 0; k < CHUNK / 16; ++k) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float2 s = *reinterpret_cast<const float2*>(decay.write + k * 16 + 2 * t + i * 8);
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float2 v = Mma<DATA_T>::unpack(written[k][2 * i + e]);
                    written[k][2 * i + e] = Mma<DATA_T>::pack(v.x * s.x, v.y * s.y);
                }
            }
        }
        wgmma_fence();
        const unsigned long long tokens = operand(in.B, CHUNK * ROW_BYTES);
#pragma unroll
        for (int k = 0; k < CHUNK / 16; ++k) multiply_columns<DATA_T>(value, written[k], tokens + k * NEXT_16_ROWS);
        wgmma_commit();
    }
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

// The weight of x[j] in y[i] from scores: decays and the time step of j, with D on the diagonal. For the 16 tokens of
// warp WARP, which is a constant here so that later tokens cost nothing.
template <int WARP>
__device__ __forceinline__ void weights_of_warp(unsigned (&weights)[CHUNK / 16][4], float (&scores)[32], const ChunkDecay& decay,
                                                const BlockDecay& blocks, float skip) {
    const int i[2] = {state_row(0), state_row(1)};
    const float since[2] = {blocks.since_block[i[0]], blocks.since_block[i[1]]};
    const float until[2] = {decay.log_decay[i[0]], decay.log_decay[i[1]]};
    float2 factor[2 * WARP + 2], step[2];
#pragma unroll
    for (int n = 0; n < 2 * WARP + 2; ++n) {
        const float* source = n < 2 * WARP ? blocks.until_block[WARP > 0 ? WARP - 1 : 0] : decay.log_decay;
        factor[n] = *reinterpret_cast<const float2*>(source + pair_column(n));
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) step[n] = *reinterpret_cast<const float2*>(decay.step + pair_column(2 * WARP + n));
#pragma unroll
    for (int n = 0; n < CHUNK / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float first = 0.0f, second = 0.0f;
            if (n < 2 * WARP) {
                first = scores[4 * n + 2 * half] * since[half] * factor[n].x;
                second = scores[4 * n + 2 * half + 1] * since[half] * factor[n].y;
            } else if (n < 2 * WARP + 2) {
                const int j = pair_column(n);
                first = scores[4 * n + 2 * half] * exp2_approx(until[half] - factor[n].x) * step[n - 2 * WARP].x;
                second = scores[4 * n + 2 * half + 1] * exp2_approx(until[half] - factor[n].y) * step[n - 2 * WARP].y;
                first = j < i[half] ? first : (j == i[half] ? first + skip : 0.0f);
                second = j + 1 < i[half] ? second : (j + 1 == i[half] ? second + skip : 0.0f);
            }
            weights[n / 2][n % 2 * 2 + half] = Mma<DATA_T>::pack(first, second);
        }
    }
}

__device__ __forceinline__ void weights_from_scores(unsigned (&weights)[CHUNK / 16][4], float (&scores)[32],
                                                    const ChunkDecay& decay, const BlockDecay& blocks, float skip) {
    switch (threadIdx.x / 32 % 4) {
        case 0: return weights_of_warp<0>(weights, scores, decay, blocks, skip);
        case 1: return weights_of_warp<1>(weights, scores, decay, blocks, skip);
        case 2: return weights_of_warp<2>(weights, scores, decay, blocks, skip);
        default: return weights_of_warp<3>(weights, scores, decay, blocks, skip);
    }
}

// y of one chunk through the memory of x, which nobody reads any more, so that rows leave in 16-byte pieces.
__device__ __forceinline__ void store_output(const float (&y)[32], unsigned char* staging, DATA_T* target, int64_t token_stride,
                                             int columns, int valid) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const unsigned staging_pieces = pieces(staging);
#pragma unroll
    for (int i = 0; i < 32; i += 8) store_pieces(staging_pieces, y + i, i / 4);
    __syncwarp();
    const int first = warp * 16 + lane / 8, unit = lane % 8;
    DATA_T* to = target + first * token_stride + unit * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (first + 4 * i < valid && unit * 8 < columns) {
            *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(staging + panel_unit<CHUNK>(first + 4 * i, unit));
        }
        to += 4 * token_stride;
    }
}

__device__ __forceinline__ void synchronize_unit() {
    asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / 128) : "memory");
}

__device__ __forceinline__ void enter_segment(State& state, const Tensors& in, const PrefillParams& p, const Task& task) {
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

// Outputs of padding tokens, and the state of a row without tokens.
__device__ __forceinline__ void finish_padding(const Tensors& in, const PrefillParams& p, const Task& task) {
    if (task.columns == 0 || PASS == 1) return;
    const int thread = threadIdx.x % 128, tokens = task.row.written - task.row.length;
    for (int i = task.segment * 128 + thread; i < tokens * task.columns; i += p.segments * 128) {
        const int64_t token = task.row.length + i / task.columns;
        in.y[token * p.y_token + i % task.columns] = from_float<DATA_T>(0.0f);
    }
    if (task.row.length == 0 && task.segment == 0 && in.state != in.state_out) {
        for (int i = thread; i < task.columns * STATE_SIZE; i += 128) in.state_out[i] = in.state[i];
    }
}

// The first warpgroup: tiles and decays of every chunk of the segment, a stage ahead of their use.
__device__ __forceinline__ void produce(Shared& shared, const PrefillParams& p, const Task& task) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Task other(p, UNITS_OF_BLOCK - 1);
    const Tensors in(p, task), in_other(p, other);
    const bool second = UNITS_OF_BLOCK == 2 && warp % 2 == 1;
    const int head_index = second ? other.head : task.head;
    const HeadScalars head = {p.A[head_index] * 1.44269504088896340736f,
                              to_float(static_cast<const BIAS_T*>(p.dt_bias)[head_index])};
    const DATA_T* dt = second ? in_other.dt : in.dt;
    RawSteps<DATA_T> raw;
    if (warp < UNITS_OF_BLOCK) raw.load(dt + static_cast<int64_t>(task.first) * CHUNK * p.dt_token, p.dt_token, task.valid(task.first), lane);
    Position position;
    for (int chunk = task.first; chunk < task.last; ++chunk) {
        Shared::Stage& stage = shared.stages[position.slot];
        const int64_t token = static_cast<int64_t>(chunk) * CHUNK;
        const int valid = task.valid(chunk);
        barrier_wait(&shared.empty[position.slot], position.parity ^ 1);
        load_tile<STATE_COLUMNS>(stage.B, in.B + token * p.B_token, p.B_token, STATE_SIZE, valid);
        if constexpr (PASS != 1) load_tile<STATE_COLUMNS>(stage.C, in.C + token * p.C_token, p.C_token, STATE_SIZE, valid);
        load_tile<WIDTH>(stage.x[0], in.x + token * p.x_token, p.x_token, task.columns, valid);
        if constexpr (UNITS_OF_BLOCK == 2) load_tile<WIDTH>(stage.x[UNITS_OF_BLOCK - 1], in_other.x + token * p.x_token, p.x_token, other.columns, valid);
        barrier_arrive_after_copies(&shared.full[position.slot]);
        if (warp < UNITS_OF_BLOCK) {
            store_decay<float>(shared.decay[position.slot][warp], raw, head, p, valid, lane);
            if (PASS != 1) store_block_decay(shared.blocks[position.slot][warp], shared.decay[position.slot][warp], lane);
            __syncwarp();
            if (lane == 0) barrier_arrive(&shared.full[position.slot]);
            if (chunk + 1 < task.last) {
                raw.load(dt + (token + CHUNK) * p.dt_token, p.dt_token, task.valid(chunk + 1), lane);
            }
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
    if (PASS != 1) {
        state.publish(published);
        synchronize_unit();
    }
    float segment_decay = 1.0f;
    Position position;
    for (int chunk = task.first; chunk < task.last; ++chunk) {
        Shared::Stage& stage = shared.stages[position.slot];
        const ChunkDecay& decay = shared.decay[position.slot][unit];
        barrier_wait(&shared.full[position.slot], position.parity);
        fence_for_wgmma();
        unsigned written[CHUNK / 16][4];
        state.scale(decay.total);
        if constexpr (PASS == 1) {
            state.start_update(written, stage, stage.x[unit], decay);
            segment_decay *= decay.total;
            wgmma_wait<0>();
            in_flight(state.value);
        } else {
            float scores[32], y[32];
            unsigned weights[CHUNK / 16][4];
            wgmma_fence();
            start_row_products(scores, stage.C, stage.B);
            start_row_products(y, stage.C, shared.state[unit]);
            state.start_update(written, stage, stage.x[unit], decay);
            const float from_start[2] = {exp2_approx(decay.log_decay[state_row(0)]), exp2_approx(decay.log_decay[state_row(1)])};
            wgmma_wait<2>();
            in_flight(scores);
            weights_from_scores(weights, scores, decay, shared.blocks[position.slot][unit], skip);
            wgmma_wait<1>();
            in_flight(y);
#pragma unroll
            for (int i = 0; i < 32; ++i) y[i] *= from_start[i / 2 % 2];
            wgmma_fence();
            const unsigned long long tokens = operand(stage.x[unit]);
#pragma unroll
            for (int k = 0; k < CHUNK / 16; ++k) multiply_columns<DATA_T>(y, weights[k], tokens + k * NEXT_16_ROWS);
            wgmma_commit();
            wgmma_wait<1>();
            in_flight(state.value);
            synchronize_unit();  // every warp has read the published state
            state.publish(published);
            wgmma_wait<0>();
            in_flight(y);
            synchronize_unit();  // the new one is there, and every warp has read x
            store_output(y, stage.x[unit], in.y + static_cast<int64_t>(chunk) * CHUNK * p.y_token, p.y_token, task.columns,
                         task.valid(chunk));
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(&shared.empty[position.slot]);
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

extern "C" __global__ void __launch_bounds__(THREADS, 1)
update_ssm_state_prefill_wgmma(const __grid_constant__ PrefillParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) unsigned char memory[];
    // Pass 2 may start when pass 1 has waited for everything before it, so that only the states wait for pass 1.
    if (PASS == 0) let_later_kernels_start();
    if (PASS != 2) wait_for_earlier_kernels();
    if (PASS != 0) let_later_kernels_start();
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int group = threadIdx.x / 128, unit = max(0, group - 1);
    const Task task(p, unit);
    if (task.row.slot < 0) return;
    if (group > 0) finish_padding(Tensors(p, task), p, task);
    if (task.first >= task.last || (PASS == 1 && task.last == task.chunks)) return;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(&shared.full[s], 128 + UNITS_OF_BLOCK);  // copies of each producing thread, decays of each unit
            barrier_init(&shared.empty[s], 4 * UNITS_OF_BLOCK);
        }
    }
    __syncthreads();
    if (group == 0) {
        if constexpr (UNITS_OF_BLOCK == 2) shrink_registers<PRODUCER_REGISTERS>();
        produce(shared, p, task);
    } else {
        if constexpr (UNITS_OF_BLOCK == 2) grow_registers<CONSUMER_REGISTERS>();
        consume(shared, p, task, unit);
    }
#endif
}
