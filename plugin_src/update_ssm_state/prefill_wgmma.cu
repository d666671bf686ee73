// Chunked state space duality (arXiv 2405.21060, section 6) on Hopper's warpgroup products, for 16-bit data.
//
// A block walks the chunks of one row and one segment for one or two units, which share B and C. A unit is a slice (at
// most 64 columns of head_dim) of one head, and has a warpgroup; another warpgroup loads tiles and computes decays
// ahead. Tokens are the rows of scores and y, so that warp w of a warpgroup owns tokens 16w..16w+15; the state
// [slice][state_size] is in fp32 registers, and its rounded copy in shared memory.
//   scores = C B^T;  y = decay_from_start o (C state^T) + (scores o decay o step + D on the diagonal) x
//   state = decay_total state + (x o write)^T B
//
// Macros: DATA_T, STATE_T, D_T, BIAS_T, HEAD_DIM, STATE_SIZE (at most 128), SLICE (at most 64, a multiple of 8),
// UNITS_OF_BLOCK (1 or 2), PASS as in prefill_mma.cu. Every row of x, B, C and y starts at a multiple of 16 bytes.
#include "common/launch.cuh"
#include "common/mbarrier.cuh"
#include "update_ssm_state/prefill_wgmma_state.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

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
__device__ __forceinline__ void weights_of_warp(unsigned (&weights)[CHUNK / 16][4], float (&scores)[32],
                                                const ChunkDecay& decay, const BlockDecay& blocks, float skip) {
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

// y of one chunk through the memory of x, which is no longer read, so that rows leave in 16-byte pieces.
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
    RawSteps<DATA_T> raw = {};
    if (warp < UNITS_OF_BLOCK) {
        raw.load(dt + static_cast<int64_t>(task.first) * CHUNK * p.dt_token, p.dt_token, task.valid(task.first), lane);
    }
    Position position;
    for (int chunk = task.first; chunk < task.last; ++chunk) {
        Shared::Stage& stage = shared.stages[position.slot];
        const int64_t token = static_cast<int64_t>(chunk) * CHUNK;
        const int valid = task.valid(chunk);
        barrier_wait(&shared.empty[position.slot], position.parity ^ 1);
        load_tile<STATE_COLUMNS>(stage.B, in.B + token * p.B_token, p.B_token, STATE_SIZE, valid);
        if constexpr (PASS != 1) load_tile<STATE_COLUMNS>(stage.C, in.C + token * p.C_token, p.C_token, STATE_SIZE, valid);
        load_tile<WIDTH>(stage.x[0], in.x + token * p.x_token, p.x_token, task.columns, valid);
        if constexpr (UNITS_OF_BLOCK == 2) {
            load_tile<WIDTH>(stage.x[1], in_other.x + token * p.x_token, p.x_token, other.columns, valid);
        }
        barrier_arrive_after_copies(&shared.full[position.slot]);
        if (warp < UNITS_OF_BLOCK) {
            store_decay<float>(shared.decay[position.slot][warp], raw, head, p, valid, lane);
            if (PASS != 1) store_block_decay(shared.blocks[position.slot][warp], shared.decay[position.slot][warp], lane);
            barrier_arrive(&shared.full[position.slot]);
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
            const float from_start[2] = {exp2_approx(decay.log_decay[state_row(0)]),
                                         exp2_approx(decay.log_decay[state_row(1)])};
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
            barrier_init(&shared.full[s], 128 + 32 * UNITS_OF_BLOCK);  // copies of each thread, decays of each lane
            barrier_init(&shared.empty[s], 128 * UNITS_OF_BLOCK);
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
