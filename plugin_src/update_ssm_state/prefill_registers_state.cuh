// The state of prefill_registers.cu and the outputs that come from it. For the macros of that file.
#pragma once

#include "update_ssm_state/prefill_gate.cuh"
#include "update_ssm_state/prefill_registers_tiles.cuh"

constexpr int STATE_TILES = STATE_COLUMNS / 8;

// The state [slice][state_size], of which a warp holds WIDTH columns of the slice in accumulators.
struct State {
    float value[STATE_TILES][4];
    int lane, first, thread;  // among those that hold the state; `first`: column of the slice

    __device__ __forceinline__ explicit State(int thread)
        : lane(thread % 32), first(thread / 32 * WIDTH), thread(thread) {}

    // access(pair of elements, column of the slice, column of the state) for every pair inside the state.
    template <typename ACCESS>
    __device__ __forceinline__ void each(int columns, ACCESS access) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int column = first + half * 8 + lane / 4;
            if (column >= columns) continue;
#pragma unroll
            for (int n = 0; n < STATE_TILES; ++n) {
                const int at = n * 8 + lane % 4 * 2;
                if (at < STATE_SIZE) access(value[n] + 2 * half, column, at);
            }
        }
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < STATE_TILES; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) value[n][i] = 0.0f;
    }
    __device__ __forceinline__ void load(const STATE_T* state, int columns) {
        clear();
        each(columns, [&](float* pair, int column, int at) {
            const auto found = *reinterpret_cast<const Vector<STATE_T, 2>*>(state + column * STATE_SIZE + at);
            pair[0] = to_float(found.data[0]), pair[1] = to_float(found.data[1]);
        });
    }
    __device__ __forceinline__ void store(STATE_T* state, int columns) {
        each(columns, [&](float* pair, int column, int at) {
            *reinterpret_cast<Vector<STATE_T, 2>*>(state + column * STATE_SIZE + at) = {from_float<STATE_T>(pair[0]),
                                                                                      from_float<STATE_T>(pair[1])};
        });
    }
    // value = value * factor + other, in the order of registers, in which states lie in scratch.
    __device__ __forceinline__ void fold(const float* other, float factor) {
        const float4* source = reinterpret_cast<const float4*>(other) + thread;
#pragma unroll
        for (int n = 0; n < STATE_TILES; ++n) {
            const float4 v = source[n * HOLDERS];
            value[n][0] = value[n][0] * factor + v.x;
            value[n][1] = value[n][1] * factor + v.y;
            value[n][2] = value[n][2] * factor + v.z;
            value[n][3] = value[n][3] * factor + v.w;
        }
    }
    __device__ __forceinline__ void keep(float* other) const {
        float4* target = reinterpret_cast<float4*>(other) + thread;
#pragma unroll
        for (int n = 0; n < STATE_TILES; ++n)
            target[n * HOLDERS] = make_float4(value[n][0], value[n][1], value[n][2], value[n][3]);
    }
};

// The columns of x of a warp, transposed: left operands of x^T B, and right ones of weights * x.
struct Inputs {
    Product::A value[CHUNK / 16];

    __device__ __forceinline__ Inputs(const DATA_T* x, const State& state) {
        const int row = state.lane % 8 + state.lane / 16 * 8, unit = state.first / 8 + state.lane / 8 % 2;
        const int at = Narrow::unit(row, unit);
#pragma unroll
        for (int k = 0; k < CHUNK / 16; ++k) Product::load_transposed(value[k].r, x, Narrow::stepped(at, k * 16, 0));
    }
    // Each token's times write[token].
    __device__ __forceinline__ void scale(const float* write, int lane) {
#pragma unroll
        for (int k = 0; k < CHUNK / 16; ++k)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float2 s = *reinterpret_cast<const float2*>(write + k * 16 + i * 8 + lane % 4 * 2);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    unsigned& pair = value[k].r[2 * i + half];
                    const float2 v = Product::unpack(pair);
                    pair = Product::pack(v.x * s.x, v.y * s.y);
                }
            }
    }
};

// state = total * state + (x o write)^T B; `written` is x o write.
__device__ __forceinline__ void update(State& state, const Inputs& written, const DATA_T* B, float total) {
#pragma unroll
    for (int n = 0; n < STATE_TILES; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) state.value[n][i] *= total;
#pragma unroll
    for (int k = 0; k < CHUNK / 16; ++k)
#pragma unroll
        for (int n = 0; n < STATE_TILES; n += 2) {
            Product::B tokens[2];
            Product::load_b_transposed<Wide>(tokens, B, n * 8, k * 16, state.lane);
            Product::multiply(state.value[n], written.value[k], tokens[0]);
            Product::multiply(state.value[n + 1], written.value[k], tokens[1]);
        }
}

// The outputs of a chunk in the columns of a warp.
struct Outputs {
    float value[CHUNK / 16][WIDTH / 8][4] = {};

    // value = decay from the chunk's start * C state^T. The rounded state is a right operand as it lies in registers.
    __device__ __forceinline__ void read(const State& state, const DATA_T* C, const ChunkDecay& decay) {
#pragma unroll
        for (int k = 0; k < STATE_COLUMNS / 16; ++k) {
            const Product::A rounded = Product::a_from_accumulators(state.value + 2 * k);
#pragma unroll
            for (int r = 0; r < CHUNK / 16; ++r) {
                const Product::A c = Product::load_a<Wide>(C, r * 16, k * 16, state.lane);
#pragma unroll
                for (int n = 0; n < WIDTH / 8; ++n)
                    Product::multiply(value[r][n], c, Product::b_from_a(rounded, n));
            }
        }
#pragma unroll
        for (int r = 0; r < CHUNK / 16; ++r)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float from_start = exp2_approx(decay.log_decay[r * 16 + half * 8 + state.lane / 4]);
#pragma unroll
                for (int n = 0; n < WIDTH / 8; ++n) {
                    value[r][n][2 * half] *= from_start;
                    value[r][n][2 * half + 1] *= from_start;
                }
            }
    }
    // value += weights x.
    __device__ __forceinline__ void add(const DATA_T* weights, const Inputs& x, int lane) {
#pragma unroll
        for (int k = 0; k < CHUNK / 16; ++k)
#pragma unroll
            for (int r = k; r < CHUNK / 16; ++r) {
                const Product::A w = Product::load_a<Square>(weights, r * 16, k * 16, lane);
#pragma unroll
                for (int n = 0; n < WIDTH / 8; ++n)
                    Product::multiply(value[r][n], w, Product::b_from_a(x.value[k], n));
            }
    }
    // y: this lane's first pair of the chunk, from which on there are `valid` tokens and `columns` of the slice. With
    // gates y = silu(gate) * value, where value is rounded first.
    template <typename GATES>
    __device__ __forceinline__ void store(DATA_T* y, int64_t token_stride, const GATES& gates, int columns,
                                          int valid) const {
#pragma unroll
        for (int r = 0; r < CHUNK / 8; ++r) {
#pragma unroll
            for (int n = 0; n < WIDTH / 8; ++n) {
                unsigned pair = Product::pack(value[r / 2][n][r % 2 * 2], value[r / 2][n][r % 2 * 2 + 1]);
                if constexpr (GATED) {
                    const float2 rounded = Product::unpack(pair);
                    float gated[2] = {rounded.x, rounded.y};
                    gates.value[r][n].multiply(gated);
                    pair = Product::pack(gated[0], gated[1]);
                }
                if (r * 8 < valid && n * 8 < columns) *reinterpret_cast<unsigned*>(y + n * 8) = pair;
            }
            y += 8 * token_stride;
        }
    }
};

// The gates of a lane's outputs. Arguments as those of Outputs::store().
struct OutputGates {
    Gate<2> value[CHUNK / 8][WIDTH / 8];

    __device__ __forceinline__ void load(const DATA_T* gate, int64_t token_stride, int columns, int valid) {
        if constexpr (!GATED) return;
#pragma unroll
        for (int r = 0; r < CHUNK / 8; ++r) {
#pragma unroll
            for (int n = 0; n < WIDTH / 8; ++n)
                if (r * 8 < valid && n * 8 < columns) value[r][n].load(gate + n * 8);
            gate += 8 * token_stride;
        }
    }
};
