// Activations of the chosen experts, whose weights are 4-bit or 8-bit tiles.
//
// Grid: x 16 rows of the intermediate size, y a route. An expert of several routes is read from L2 after the first.
// Macros: those of tiled_row.cuh; EXPERT_GATED (the first half of an expert's rows is a gate); ACTIVATION.
#include "routed_experts/activate.cuh"
#include "routed_experts/bias.cuh"
#include "routed_experts/tiled_row.cuh"

constexpr int PARTS = EXPERT_GATED ? 2 : 1;

extern "C" __global__ void __launch_bounds__(THREADS, 1) tiled_experts_up(const __grid_constant__ TiledExperts params) {
    __shared__ RowSums<PARTS> shared;
    const int route = blockIdx.y, first = blockIdx.x * OUTPUTS, rows = params.intermediate;
    let_later_kernels_start();
    wait_for_earlier_kernels();

    const int expert = params.expert_ids[route];
    const TiledMatrix matrix = {static_cast<const unsigned char*>(params.up_tiles), params.experts * PARTS * rows / 8,
                                params.hidden};
    const DATA_T* x = static_cast<const DATA_T*>(params.x) + route / params.top_k * params.x_stride;
    float2 sums[PARTS] = {};
    for (int slice = threadIdx.x / 32; slice < matrix.slices(); slice += WARPS) {
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            const float2 more = matrix.multiply(x, ((expert * PARTS + i) * rows + first) / 8, slice);
            sums[i].x += more.x;
            sums[i].y += more.y;
        }
    }
    shared.store(sums);
    const int output = first + threadIdx.x;
    if (threadIdx.x >= OUTPUTS || output >= rows) return;
    const float* factors = params.up_factors + int64_t(expert) * PARTS * rows + output;
    const int64_t place = int64_t(expert) * PARTS * rows + output;
    float value = fmaf(shared.total(0, threadIdx.x), factors[0], bias_at<DATA_T>(params.up_bias, place));
    if (EXPERT_GATED) {
        const float bias = bias_at<DATA_T>(params.up_bias, place + rows);
        value = activate_gated(params.activation, value,
                               fmaf(shared.total(PARTS - 1, threadIdx.x), factors[(PARTS - 1) * rows], bias));
    } else {
        value = activate(params.activation, value);
    }
    static_cast<DATA_T*>(params.inner)[int64_t(route) * rows + output] = from_float<DATA_T>(value);
}
