// Down projections of the chosen experts, whose weights are tiles, weighted and summed for each token.
//
// Grid: x 16 columns of the output, y a token. The warps of a block share the slices of all routes of the token.
// Macros: those of tiled_row.cuh.
#include "routed_experts/bias.cuh"
#include "routed_experts/tiled_row.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    tiled_experts_down(const __grid_constant__ TiledExperts params) {
    __shared__ RowSums<1> shared;
    const int token = blockIdx.y, first = blockIdx.x * OUTPUTS, row = threadIdx.x % 32 / 4;
    let_later_kernels_start();
    wait_for_earlier_kernels();

    const TiledMatrix matrix = {static_cast<const unsigned char*>(params.down_tiles),
                                params.experts * params.hidden / 8, params.intermediate};
    float2 sums[1] = {};
    for (int item = threadIdx.x / 32; item < params.top_k * matrix.slices(); item += WARPS) {
        const int route = token * params.top_k + item / matrix.slices(), expert = params.expert_ids[route];
        const DATA_T* inner = static_cast<const DATA_T*>(params.inner) + int64_t(route) * params.intermediate;
        const float2 more = matrix.multiply(inner, (expert * params.hidden + first) / 8, item % matrix.slices());
        const float* factors = params.down_factors + int64_t(expert) * params.hidden + first;
        const float weight = params.expert_weights[route];
        sums[0].x = fmaf(more.x, weight * factors[row], sums[0].x);
        if (first + 8 < params.hidden) sums[0].y = fmaf(more.y, weight * factors[row + 8], sums[0].y);
    }
    shared.store(sums);
    const int output = first + threadIdx.x;
    if (threadIdx.x >= OUTPUTS || output >= params.hidden) return;
    float y = shared.total(0, threadIdx.x);
    for (int route = token * params.top_k; route < (token + 1) * params.top_k; route++) {
        const int64_t place = int64_t(params.expert_ids[route]) * params.hidden + output;
        y = fmaf(params.expert_weights[route], bias_at<DATA_T>(params.down_bias, place), y);
    }
    static_cast<DATA_T*>(params.y)[int64_t(token) * params.hidden + output] = from_float<DATA_T>(y);
}
