// The weights of a chunk's tokens in the outputs of prefill_registers.cu, by its helpers. For the macros of that file.
#pragma once

#include "update_ssm_state/prefill_registers_tiles.cuh"

static_assert(CHUNK == 32, "three blocks of sixteen by sixteen scores on and below the diagonal");
constexpr int SCORE_BLOCKS = 3;

// For a block of scores = C B^T: weights[i][j] = scores[i][j] * decay from j to i * step of j, with D on the diagonal.
__device__ __forceinline__ void weigh(DATA_T* weights, const Shared::Projections& in, const ChunkDecay& decay,
                                      float skip, int block) {
    const int lane = threadIdx.x % 32;
    const int tokens = block < 2 ? 16 : 0, earlier = block == 1 ? 16 : 0;  // where they begin
    float scores[2][4] = {};
#pragma unroll
    for (int k = 0; k < STATE_COLUMNS; k += 16) {
        const Product::A c = Product::load_a<Wide>(in.C, tokens, k, lane);
        Product::B b[2];
        Product::load_b<Wide>(b, in.B, earlier, k, lane);
        Product::multiply(scores[0], c, b[0]);
        Product::multiply(scores[1], c, b[1]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        const int j = earlier + n * 8 + lane % 4 * 2;
        const float2 until = *reinterpret_cast<const float2*>(decay.log_decay + j);
        const float2 step = *reinterpret_cast<const float2*>(decay.step + j);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = tokens + lane / 4 + half * 8;
            const float until_i = decay.log_decay[i];
            float first = scores[n][2 * half] * exp2_approx(until_i - until.x) * step.x;
            float second = scores[n][2 * half + 1] * exp2_approx(until_i - until.y) * step.y;
            first = j < i ? first : (j == i ? first + skip : 0.0f);
            second = j + 1 < i ? second : (j + 1 == i ? second + skip : 0.0f);
            *reinterpret_cast<unsigned*>(weights + Square::at(i, j)) = Product::pack(first, second);
        }
    }
}
