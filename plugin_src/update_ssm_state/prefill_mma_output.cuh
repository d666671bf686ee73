// The outputs of one chunk of prefill_mma.cu, in accumulators. For the macros of that file.
#pragma once

#include "update_ssm_state/prefill_tiles.cuh"
#include "update_ssm_state/prefill_mma_state.cuh"

// Steps of C times B and the state that are unrolled. With a short chunk all of them would spill.
constexpr int UNROLLED_STEPS = CHUNK < 64 ? 4 : STATE_ROWS / Product::K;

// Sixteen tokens of y of one chunk, in accumulators.
struct Output {
    float value[SLICE_TILES][4];

    __device__ __forceinline__ void compute(const Shared& shared, const Shared::Stage& in, const ChunkDecay& decay,
                                            float skip) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        float scores[CHUNK / 8][4] = {};
#pragma unroll
        for (int i = 0; i < SLICE_TILES * 4; ++i) (&value[0][0])[i] = 0.0f;
#pragma unroll UNROLLED_STEPS
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
