// What the chosen experts make of their activations, weighted and added up for each token.
//
// Macros: DATA_T; THREADS.
// Grid: x a warp's output column, y 32 tokens, each the sum of one lane. A warp reads its column's weights of every
// route in turn; those of an expert that routes share come from the caches after the first. A token's routes are added
// in their order, whatever other tokens do.
#include "common/access.cuh"
#include "common/launch.cuh"
#include "routed_experts/bias.cuh"
#include "routed_experts/params.cuh"
#include "routed_experts/warp_sum.cuh"

namespace {

constexpr int VECTOR = 16 / sizeof(DATA_T);
constexpr int AT_ONCE = 4;  // routes whose weights are in flight together
constexpr int UNROLL = 2;
constexpr int STEP = 32 * VECTOR;

using Piece = Access<DATA_T, VECTOR>;

__device__ __forceinline__ float multiply(const Piece& weights, const float* inner) {
    float factors[VECTOR], values[VECTOR], sum = 0.0f;
    weights.unpack(factors);
#pragma unroll
    for (int i = 0; i < VECTOR; i += 4) {
        Access<float, 4> part;
        part.load(inner + i);
        part.unpack(values + i);
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sum = fmaf(factors[i], values[i], sum);
    return sum;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    routed_experts_down(const __grid_constant__ RoutedExperts params) {
    const int lane = threadIdx.x % 32, column = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int size = params.intermediate, token = blockIdx.y * 32;
    const int end = min(token + 32, params.tokens) * params.top_k;
    let_later_kernels_start();
    if (column >= params.hidden) return;
    wait_for_earlier_kernels();

    float y = 0.0f;
    for (int first = token * params.top_k; first < end; first += AT_ONCE) {
        const DATA_T* rows[AT_ONCE];
        float sums[AT_ONCE] = {};
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
            const int64_t expert = params.expert_ids[min(first + r, end - 1)];
            rows[r] = static_cast<const DATA_T*>(params.down_weight) + (expert * params.hidden + column) * size;
        }
        for (int start = lane * VECTOR; start < size; start += UNROLL * STEP) {
            Piece pieces[AT_ONCE][UNROLL];
#pragma unroll
            for (int r = 0; r < AT_ONCE; r++)
#pragma unroll
                for (int u = 0; u < UNROLL; u++)
                    if (first + r < end && start + u * STEP < size) pieces[r][u].load(rows[r] + start + u * STEP);
#pragma unroll
            for (int r = 0; r < AT_ONCE; r++)
#pragma unroll
                for (int u = 0; u < UNROLL; u++)
                    if (first + r < end && start + u * STEP < size)
                        sums[r] += multiply(pieces[r][u], params.inner + static_cast<int64_t>(first + r) * size +
                                                              start + u * STEP);
        }
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
            if (first + r >= end) break;
            const float result = warp_sum(sums[r]);
            if ((first + r) / params.top_k != token + lane) continue;
            const int64_t place = static_cast<int64_t>(params.expert_ids[first + r]) * params.hidden + column;
            y = fmaf(params.expert_weights[first + r], result + bias_at<DATA_T>(params.down_bias, place), y);
        }
    }
    if (token + lane < params.tokens)
        static_cast<DATA_T*>(params.y)[static_cast<int64_t>(token + lane) * params.hidden + column] =
            from_float<DATA_T>(y);
}
