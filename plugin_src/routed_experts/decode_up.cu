// Activations of the chosen experts, for few tokens: bound by reading each chosen expert's weights once.
//
// Macros: DATA_T; GATED (the first half of an expert's rows is a gate); ACTIVATION (see activate()); ROUTES (that a
// warp computes at a time); THREADS.
// Grid: x a warp's row of the intermediate size, y a route. The first route of an expert computes for all routes that
// share it, the others return, so that one token among many costs what it costs alone, bit for bit. A lane asks for
// UNROLL pieces of each row before it needs the first: enough loads in flight reach the memory's bandwidth.
#include "common/access.cuh"
#include "common/launch.cuh"
#include "routed_experts/activate.cuh"
#include "routed_experts/bias.cuh"
#include "routed_experts/params.cuh"
#include "routed_experts/warp_sum.cuh"

namespace {

constexpr int VECTOR = 16 / sizeof(DATA_T);
constexpr int ROWS = GATED ? 2 : 1;
constexpr int UNROLL = ROUTES == 1 ? 8 : 4;
constexpr int STEP = 32 * VECTOR;

using Piece = Access<DATA_T, VECTOR>;

// sums[row][route] += the lane's share of weights[row] . x[route], for the first `count` routes.
__device__ __forceinline__ void multiply(float (&sums)[ROWS][ROUTES], const DATA_T* const (&weights)[ROWS],
                                         const DATA_T* const (&x)[ROUTES], int count, int size) {
    for (int first = threadIdx.x % 32 * VECTOR; first < size; first += UNROLL * STEP) {
        Piece pieces[UNROLL][ROWS];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int row = 0; row < ROWS; row++)  // past the end the last piece, which is not used
                pieces[u][row].load(weights[row] + min(first + u * STEP, size - VECTOR));
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (first + u * STEP >= size) break;
            float factors[ROWS][VECTOR];
#pragma unroll
            for (int row = 0; row < ROWS; row++) pieces[u][row].unpack(factors[row]);
#pragma unroll
            for (int route = 0; route < ROUTES; route++) {
                if (route >= count) break;
                Piece piece;
                float values[VECTOR];
                piece.load(x[route] + first + u * STEP);
                piece.unpack(values);
#pragma unroll
                for (int row = 0; row < ROWS; row++)
#pragma unroll
                    for (int i = 0; i < VECTOR; i++)
                        sums[row][route] = fmaf(factors[row][i], values[i], sums[row][route]);
            }
        }
    }
}

// inner[route][row] of up to ROUTES routes, which all chose the expert of `weights`.
__device__ __forceinline__ void compute(const RoutedExperts& params, const DATA_T* const (&weights)[ROWS],
                                        const int (&routes)[ROUTES], int count, int expert, int row) {
    const DATA_T* x[ROUTES];
#pragma unroll
    for (int route = 0; route < ROUTES; route++)
        x[route] = static_cast<const DATA_T*>(params.x) + routes[route] / params.top_k * params.x_stride;
    float sums[ROWS][ROUTES] = {};
    multiply(sums, weights, x, count, params.hidden);
#pragma unroll
    for (int route = 0; route < ROUTES; route++) {
        if (route >= count) break;
        const int64_t place = static_cast<int64_t>(expert) * ROWS * params.intermediate + row;
        float value = warp_sum(sums[0][route]) + bias_at<DATA_T>(params.up_bias, place);
        if (GATED) {
            const float up = warp_sum(sums[ROWS - 1][route]);
            value = activate_gated(params.activation, value,
                                   up + bias_at<DATA_T>(params.up_bias, place + params.intermediate));
        } else {
            value = activate(params.activation, value);
        }
        if (threadIdx.x % 32 == 0)
            params.inner[static_cast<int64_t>(routes[route]) * params.intermediate + row] = value;
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) routed_experts_up(const __grid_constant__ RoutedExperts params) {
    const int lane = threadIdx.x % 32, route = blockIdx.y, routes = params.tokens * params.top_k;
    const int row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    let_later_kernels_start();
    if (row >= params.intermediate) return;
    wait_for_earlier_kernels();

    const int expert = params.expert_ids[route];
    const DATA_T* weights[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        weights[i] = static_cast<const DATA_T*>(params.up_weight) +
                     (static_cast<int64_t>(expert * ROWS + i) * params.intermediate + row) * params.hidden;
    for (int base = 0; base < routes; base += 32) {
        const int other = base + lane;
        const bool shares = other < routes && params.expert_ids[other] == expert;
        if (__ballot_sync(0xffffffffu, shares && other < route)) return;
        unsigned left = __ballot_sync(0xffffffffu, shares);
        while (left) {
            int members[ROUTES], count = 0;
#pragma unroll
            for (int i = 0; i < ROUTES; i++) {
                members[i] = left ? base + __ffs(left) - 1 : route;
                count += left != 0;
                left &= left - 1;
            }
            compute(params, weights, members, count, expert, row);
        }
    }
}
