// Joins what the blocks of wide_heads.cu found in their splits of a row's positions.
//
// Macros: DATA_T; HEAD_DIM; QUERIES (of a tile). Grid: x covers the tiles of each KV head, y the queries of a tile, z the rows;
// a thread has four columns of a head.
#include "common/access.cuh"
#include "common/launch.cuh"
#include "common/math.cuh"
#include "paged_attention/wide_params.cuh"

namespace {

constexpr int COLUMNS = 4;
constexpr float LOG2_E = 1.44269504f;

}  // namespace

extern "C" __global__ void __launch_bounds__(HEAD_DIM / COLUMNS, 1)
    paged_attention_wide_merge(const __grid_constant__ WideAttention wide) {
    wait_for_earlier_kernels();
    let_later_kernels_start();
    const PagedAttention& p = wide.call;
    const int row = blockIdx.z, head = blockIdx.x / wide.tiles, index = blockIdx.x % wide.tiles * QUERIES + blockIdx.y;
    const int first_token = p.query_start_loc[row], tokens = p.query_start_loc[row + 1] - first_token;
    if (p.seq_lens[row] <= 0 || index >= tokens * p.group) return;
    const int64_t first = (int64_t(row) * gridDim.x + blockIdx.x) * wide.splits * QUERIES + blockIdx.y;
    const float minus_infinity = __uint_as_float(0xff800000u);
    float reference = minus_infinity;
    for (int s = 0; s < wide.splits; ++s) {
        const float2 sums = *reinterpret_cast<const float2*>(wide.sums + (first + int64_t(s) * QUERIES) * 2);
        if (sums.y > 0.0f) reference = fmaxf(reference, sums.x);
    }
    float total = 0.0f, y[COLUMNS] = {};
    for (int s = 0; s < wide.splits; ++s) {
        const int64_t part = first + int64_t(s) * QUERIES;
        const float2 sums = *reinterpret_cast<const float2*>(wide.sums + part * 2);
        if (!(sums.y > 0.0f)) continue;  // no key
        const float weight = exp2_approx(sums.x - reference);
        const float4 values = *reinterpret_cast<const float4*>(wide.outputs + part * HEAD_DIM + threadIdx.x * COLUMNS);
        total = fmaf(weight, sums.y, total);
        y[0] = fmaf(weight, values.x, y[0]);
        y[1] = fmaf(weight, values.y, y[1]);
        y[2] = fmaf(weight, values.z, y[2]);
        y[3] = fmaf(weight, values.w, y[3]);
    }
    const float sink = p.sinks ? p.sinks[head * p.group + index % p.group] : minus_infinity;
    const float normalizer = 1.0f / (total + exp2_approx(sink * LOG2_E - reference));
#pragma unroll
    for (float& value : y) value *= normalizer;
    Access<DATA_T, COLUMNS> rounded;
    rounded.pack(y);
    rounded.store(static_cast<DATA_T*>(p.y) + (first_token + index / p.group) * p.y_token +
                  (head * p.group + index % p.group) * p.y_head + threadIdx.x * COLUMNS);
}
