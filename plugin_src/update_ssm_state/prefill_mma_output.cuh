// The outputs of one chunk of prefill_mma.cu, in accumulators. For the macros of that file.
#pragma once

#include "update_ssm_state/prefill_gate.cuh"
#include "update_ssm_state/prefill_mma_state.cuh"
#include "update_ssm_state/prefill_tiles.cuh"

// Steps of C times B and the state that are unrolled. With a short chunk all of them would spill.
constexpr int UNROLLED_STEPS = CHUNK < 64 ? 4 : STATE_ROWS / Product::K;
static_assert(PARTS == 1 || (CHUNK == 64 && SLICE % 32 == 0), "a part is whole pairs of tiles");

// Sixteen tokens and one of PARTS parts of the slice's columns, in accumulators. The same warps compute, of the scores
// of these tokens, every PARTS-th block of sixteen earlier tokens, from `part` on.
struct Output {
    static constexpr int TILES = SLICE_TILES / PARTS;
    static constexpr int BLOCKS = CHUNK / 16 / PARTS;
    float value[TILES][4];
    float scores[BLOCKS][2][4];
    int lane, part, tokens;  // sixteen from tokens * 16 on

    // Late tokens have more work: the second part takes them in the other order, so that the work is even among the
    // four schedulers of a multiprocessor.
    __device__ __forceinline__ Output() {
        const int thread = thread_of_chunk(), warp = thread / 32;
        lane = thread % 32;
        part = PARTS == 1 ? 0 : warp / 4;
        tokens = part == 0 ? warp : 7 - warp;
    }
    // The block of earlier tokens that scores[b] are of.
    __device__ __forceinline__ int block(int b) const { return b * PARTS + part; }

    // value = C state and scores = C B^T.
    __device__ __forceinline__ void read(const Shared& shared, const Shared::Stage& in) {
#pragma unroll
        for (int i = 0; i < TILES * 4; ++i) (&value[0][0])[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < BLOCKS * 8; ++i) (&scores[0][0][0])[i] = 0.0f;
#pragma unroll UNROLLED_STEPS
        for (int k = 0; k < STATE_ROWS; k += Product::K) {
            const Product::A c = Product::load_a<Shared::Wide>(shared.C, tokens * 16, k, lane);
#pragma unroll
            for (int b = 0; b < BLOCKS; ++b) {
                if (PARTS == 1 && b > tokens) break;  // with two parts the branches would cost more than the products
                Product::B earlier[2];
                Product::load_b<Shared::Wide>(earlier, in.B, block(b) * 16, k, lane);
                Product::multiply(scores[b][0], c, earlier[0]);
                Product::multiply(scores[b][1], c, earlier[1]);
            }
#pragma unroll
            for (int n = 0; n < TILES; n += 2) {
                Product::B s[2];
                Product::load_b_transposed<Shared::Narrow>(s, shared.state, (part * TILES + n) * 8, k, lane);
                Product::multiply(value[n], c, s[0]);
                Product::multiply(value[n + 1], c, s[1]);
            }
        }
    }
    // What is read from the state decays from the chunk's start; scores become weights of x, with D on the diagonal.
    __device__ __forceinline__ void decayed(const ChunkDecay& decay, float skip) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = tokens * 16 + lane / 4 + half * 8;
            const float until_i = decay.log_decay[i], rest_i = decay.log_decay_rest[i];
            const float from_start = exp2_approx(until_i);
#pragma unroll
            for (int n = 0; n < TILES; ++n) {
                value[n][2 * half] *= from_start;
                value[n][2 * half + 1] *= from_start;
            }
#pragma unroll
            for (int b = 0; b < BLOCKS; ++b) {
                if (block(b) > tokens) break;
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    const int first = block(b) * 16 + n * 8 + lane % 4 * 2;
                    const float2 until = *reinterpret_cast<const float2*>(decay.log_decay + first);
                    const float2 rest = *reinterpret_cast<const float2*>(decay.log_decay_rest + first);
                    const float2 step = *reinterpret_cast<const float2*>(decay.step + first);
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int j = first + e;
                        float since_j = until_i - (e == 0 ? until.x : until.y);
                        if constexpr (sizeof(DATA_T) == 4) since_j += rest_i - (e == 0 ? rest.x : rest.y);
                        float& score = scores[b][n][2 * half + e];
                        const float weight = score * exp2_approx(since_j) * (e == 0 ? step.x : step.y);
                        score = j < i ? weight : (j == i ? weight + skip : 0.0f);
                    }
                }
            }
        }
    }
    // Weights for the warps of the other part.
    __device__ __forceinline__ void publish(DATA_T* weights) const {
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b) {
            if (block(b) > tokens) break;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = tokens * 16 + lane / 4 + i % 2 * 8, column = block(b) * 16 + i / 2 * 8 + lane % 4 * 2;
                const float* pair = scores[b][i / 2] + i % 2 * 2;
                *reinterpret_cast<Vector<DATA_T, 2>*>(weights + Shared::Square::at(row, column)) = {
                    from_float<DATA_T>(pair[0]), from_float<DATA_T>(pair[1])};
            }
        }
    }
    // value += weights x.
    __device__ __forceinline__ void add(const Shared& shared, const Shared::Stage& in) {
#pragma unroll
        for (int k = 0; k < CHUNK; k += Product::K) {
            Product::A weights;
            if constexpr (PARTS == 1) {
                if (k / 16 > tokens) break;
                weights = Product::a_from_accumulators(&scores[0][0] + k / 8);
            } else {
                weights = Product::load_a<Shared::Square>(shared.weights, tokens * 16, k, lane);
            }
#pragma unroll
            for (int n = 0; n < TILES; n += 2) {
                Product::B x[2];
                Product::load_b_transposed<Shared::Narrow>(x, in.x, (part * TILES + n) * 8, k, lane);
                Product::multiply(value[n], weights, x[0]);
                Product::multiply(value[n + 1], weights, x[1]);
            }
        }
    }
    // value = silu(gate) * value, where value is rounded first. Arguments as those of store().
    __device__ __forceinline__ void multiply(const DATA_T* gate, int64_t token_stride, int columns, int valid) {
        constexpr int HALVES = GATE_ACCESS > 1 ? 2 : 1;  // in flight; elements one by one take more registers
        Gate<2> gates[HALVES][TILES];
#pragma unroll
        for (int first = 0; first < 2; first += HALVES) {
#pragma unroll
            for (int half = 0; half < HALVES; ++half) {
                const int token = tokens * 16 + lane / 4 + (first + half) * 8;
                const DATA_T* from = gate + token * token_stride + part * TILES * 8 + lane % 4 * 2;
#pragma unroll
                for (int n = 0; n < TILES; ++n) {
                    const int column = (part * TILES + n) * 8 + lane % 4 * 2;
                    if (token < valid && column < columns) gates[half][n].load(from + n * 8);
                }
            }
#pragma unroll
            for (int half = 0; half < HALVES; ++half) {
#pragma unroll
                for (int n = 0; n < TILES; ++n) {
                    float* outputs = value[n] + 2 * (first + half);
                    float pair[2];
#pragma unroll
                    for (int e = 0; e < 2; ++e) pair[e] = to_float(from_float<DATA_T>(outputs[e]));
                    gates[half][n].multiply(pair);
#pragma unroll
                    for (int e = 0; e < 2; ++e) outputs[e] = pair[e];
                }
            }
        }
    }
    // `valid` counts the tokens of the chunk; y points at its first token and the slice's first column.
    __device__ __forceinline__ void store(DATA_T* y, int64_t token_stride, int columns, int valid) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int token = tokens * 16 + lane / 4 + half * 8;
            if (token >= valid) break;
#pragma unroll
            for (int n = 0; n < TILES; ++n) {
                const int column = (part * TILES + n) * 8 + lane % 4 * 2;
                if (column < columns) {
                    store_pair<DATA_T, ALIGNED>(y + token * token_stride + column, value[n][2 * half],
                                                value[n][2 * half + 1]);
                }
            }
        }
    }
};
