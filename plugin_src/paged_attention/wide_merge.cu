// Joins what the blocks of wide_heads.cu found in their splits of a row's positions.
//
// Macros: DATA_T; HEAD_DIM; QUERIES (of a tile); MOST_SPLITS. Grid: x covers the tiles of each KV head, y the queries of a tile,
// z the rows or the tokens; a thread has four columns of a head, and every SHARES-th split.
#include "common/access.cuh"
#include "common/launch.cuh"
#include "common/math.cuh"
#include "paged_attention/wide_params.cuh"

namespace {

constexpr int COLUMNS = 4, LANES = HEAD_DIM / COLUMNS, SHARES = 4, THREADS = LANES * SHARES;
constexpr float LOG2_E = 1.44269504f;

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    paged_attention_wide_merge(const __grid_constant__ WideAttention wide) {
    __shared__ float weights[MOST_SPLITS];
    __shared__ alignas(16) float shares[SHARES][HEAD_DIM];
    __shared__ float total_weight, highest;
    wait_for_earlier_kernels();
    let_later_kernels_start();
    const PagedAttention& p = wide.call;
    const WideRow own(wide, blockIdx.z);
    const int head = blockIdx.x / wide.tiles, index = blockIdx.x % wide.tiles * QUERIES + blockIdx.y;
    if (own.length <= 0 || index >= own.tokens * p.group) return;
    const int64_t first = (int64_t(blockIdx.z) * gridDim.x + blockIdx.x) * wide.splits * QUERIES + blockIdx.y;
    const float minus_infinity = __uint_as_float(0xff800000u);
    if (threadIdx.x < 32) {
        float reference = minus_infinity, total = 0.0f;
        for (int s = threadIdx.x; s < wide.splits; s += 32) {
            const float2 sums = *reinterpret_cast<const float2*>(wide.sums + (first + int64_t(s) * QUERIES) * 2);
            if (sums.y > 0.0f) reference = fmaxf(reference, sums.x);  // else it has no key
        }
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2) reference = fmaxf(reference, __shfl_xor_sync(~0u, reference, mask));
        for (int s = threadIdx.x; s < wide.splits; s += 32) {
            const float2 sums = *reinterpret_cast<const float2*>(wide.sums + (first + int64_t(s) * QUERIES) * 2);
            const float weight = sums.y > 0.0f ? exp2_approx(sums.x - reference) : 0.0f;
            weights[s] = weight;
            total = fmaf(weight, sums.y, total);
        }
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2) total += __shfl_xor_sync(~0u, total, mask);
        if (threadIdx.x == 0) total_weight = total, highest = reference;
    }
    __syncthreads();
    const int column = threadIdx.x % LANES * COLUMNS, share = threadIdx.x / LANES;
    float y[COLUMNS] = {};
#pragma unroll 8
    for (int s = share; s < wide.splits; s += SHARES) {
        const float4 values = *reinterpret_cast<const float4*>(wide.outputs + (first + int64_t(s) * QUERIES) * HEAD_DIM + column);
        y[0] = fmaf(weights[s], values.x, y[0]);
        y[1] = fmaf(weights[s], values.y, y[1]);
        y[2] = fmaf(weights[s], values.z, y[2]);
        y[3] = fmaf(weights[s], values.w, y[3]);
    }
    *reinterpret_cast<float4*>(&shares[share][column]) = make_float4(y[0], y[1], y[2], y[3]);
    __syncthreads();
    if (share > 0) return;
    const float sink = p.sinks ? p.sinks[head * p.group + index % p.group] : minus_infinity;
    const float normalizer = 1.0f / (total_weight + exp2_approx(sink * LOG2_E - highest));
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < SHARES; ++j) sum += shares[j][column + i];
        y[i] = sum * normalizer;
    }
    Access<DATA_T, COLUMNS> rounded;
    rounded.pack(y);
    rounded.store(static_cast<DATA_T*>(p.y) + (own.first_token + index / p.group) * p.y_token +
                  (head * p.group + index % p.group) * p.y_head + column);
}
