// What a block of prefill_mma.cu works on, and its state in accumulators. For the macros of that file.
#pragma once

#include "update_ssm_state/prefill_tiles.cuh"

using Shared = PrefillShared<DATA_T, STATE_SIZE, SLICE, STAGES>;
using Product = Mma<DATA_T>;

constexpr int STATE_ROWS = round_up(STATE_SIZE, 16);
constexpr int STATE_TILES = (STATE_ROWS / 16 + WARPS - 1) / WARPS;  // of 16 rows, of one warp
constexpr bool EVEN = STATE_ROWS / 16 % WARPS == 0;  // every warp has STATE_TILES of them
constexpr int SLICE_TILES = SLICE / 8;
constexpr int SLICES = (HEAD_DIM + SLICE - 1) / SLICE;
constexpr int DECAY_WARP = PARTS == 2 ? 7 : 0;  // it has the fewest scores to weigh
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
    __device__ __forceinline__ int valid(int chunk) const { return min(CHUNK, row.length - chunk * CHUNK); }
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

    __device__ static __forceinline__ int row(int tile, int i, int thread = threadIdx.x) {
        return (tile * WARPS + thread / 32) * 16 + thread % 32 / 4 + i / 2 * 8;
    }
    __device__ static __forceinline__ int column(int tile, int i, int thread = threadIdx.x) {
        return tile * 8 + thread % 4 * 2 + i % 2;
    }

    // access(element, row of state_size, column of the slice) for every element inside the state.
    template <typename ACCESS>
    __device__ __forceinline__ void each(int columns, ACCESS access) {
#pragma unroll
        for (int m = 0; m < STATE_TILES; ++m)
#pragma unroll
            for (int n = 0; n < SLICE_TILES; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (row(m, i) < STATE_SIZE && column(n, i) < columns)
                        access(value[m][n][i], row(m, i), column(n, i));
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
        const int thread = thread_of_chunk();
#pragma unroll
        for (int m = 0; m < STATE_TILES; ++m)
#pragma unroll
            for (int n = 0; n < SLICE_TILES; ++n)
#pragma unroll
                for (int i = 0; i < 4; i += 2) {
                    const int at = row(m, i, thread);
                    if (!EVEN && at >= STATE_ROWS) continue;
                    *reinterpret_cast<Vector<DATA_T, 2>*>(tile + Shared::Narrow::at(at, column(n, i, thread))) = {
                        from_float<DATA_T>(value[m][n][i]), from_float<DATA_T>(value[m][n][i + 1])};
                }
    }
    // state = total * state + (B o write)^T x; past the end of a row x and write are 0.
    __device__ __forceinline__ void update(const Shared::Stage& in, const ChunkDecay& decay) {
        const int thread = thread_of_chunk(), lane = thread % 32, warp = thread / 32;
#pragma unroll
        for (int i = 0; i < STATE_REGISTERS; ++i) (&value[0][0][0])[i] *= decay.total;
#pragma unroll
        for (int k = 0; k < CHUNK; k += Product::K) {
            Product::A written[STATE_TILES];
#pragma unroll
            for (int m = 0; m < STATE_TILES; ++m) {
                const int tile = EVEN ? m * WARPS + warp : min(m * WARPS + warp, STATE_ROWS / 16 - 1);
                written[m] = Product::load_a_scaled<Shared::Wide>(in.B, decay.write, tile * 16, k, lane);
            }
#pragma unroll
            for (int n = 0; n < SLICE_TILES; n += 2) {
                Product::B tokens[2];
                Product::load_b_transposed<Shared::Narrow>(tokens, in.x, n * 8, k, lane);
#pragma unroll
                for (int m = 0; m < STATE_TILES; ++m) {
                    if (EVEN || m * WARPS + warp < STATE_ROWS / 16) {
                        Product::multiply(value[m][n], written[m], tokens[0]);
                        Product::multiply(value[m][n + 1], written[m], tokens[1]);
                    }
                }
            }
        }
    }
};
