// Joins what the blocks of the kernels for latents found in their splits of a row's positions.
//
// A thread has four columns of one query, and every SHARES-th split: with one share, few splits, and no need to wait
// for other threads.
//
// Macros: DATA_T; HEAD_DIM; QUERIES (of a tile); SHARES (1, 4 or 16; 1 with at most FEW_SPLITS splits); FEW_SPLITS;
// MOST_SPLITS. Grid: x covers the tiles of each KV head, y the groups of four columns of a tile, z the rows or the
// tokens.
#include "common/access.cuh"
#include "common/launch.cuh"
#include "common/math.cuh"
#include "paged_attention/wide_params.cuh"

namespace {

constexpr int COLUMNS = 4, LANES = HEAD_DIM / COLUMNS, THREADS = LANES * 4;
constexpr int OWN = THREADS / SHARES;  // groups of columns of a block
constexpr float LOG2_E = 1.44269504f;
static_assert(THREADS % SHARES == 0 && (SHARES == 1 ? OWN % LANES == 0 : LANES % OWN == 0), "blocks are full");

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// Of one query: the largest reference of its splits, and the sum of all weights relative to it.
struct Total {
    float highest, weight;
};

__device__ __forceinline__ float weight_of(float2 sums, float highest) {
    return sums.y > 0.0f ? exp2_approx(sums.x - highest) : 0.0f;  // else the split has no key
}

__device__ __forceinline__ void store(const PagedAttention& p, const WideRow& own, int head, int index, int column,
                                      float (&y)[COLUMNS], const Total& total) {
    const float sink = p.sinks ? p.sinks[head * p.group + index % p.group] : minus_infinity();
    const float normalizer = 1.0f / (total.weight + exp2_approx(sink * LOG2_E - total.highest));
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) y[i] *= normalizer;
    Access<DATA_T, COLUMNS> rounded;
    rounded.pack(y);
    rounded.store(static_cast<DATA_T*>(p.y) + (own.first_token + index / p.group) * p.y_token +
                  (head * p.group + index % p.group) * p.y_head + column);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, SHARES == 1 ? 3 : 2)
    paged_attention_wide_merge(const __grid_constant__ WideAttention wide) {
    wait_for_earlier_kernels();
    let_later_kernels_start();
    const PagedAttention& p = wide.call;
    const WideRow own(wide, blockIdx.z);
    const int group = blockIdx.y * OWN + threadIdx.x % OWN, query = group / LANES, column = group % LANES * COLUMNS;
    const int head = blockIdx.x / wide.tiles, index = blockIdx.x % wide.tiles * QUERIES + query;
    if (own.length <= 0 || index >= own.tokens * p.group) return;
    const int64_t first = (int64_t(blockIdx.z) * gridDim.x + blockIdx.x) * wide.splits * QUERIES + query;
    const float2* sums = reinterpret_cast<const float2*>(wide.sums) + first;
    const float* outputs = wide.outputs + first * HEAD_DIM + column;
    float y[COLUMNS] = {};
    Total total = {minus_infinity(), 0.0f};
    if constexpr (SHARES == 1) {
        float2 found[FEW_SPLITS];
        float4 values[FEW_SPLITS];
#pragma unroll
        for (int s = 0; s < FEW_SPLITS; ++s) {
            found[s] = s < wide.splits ? sums[s * QUERIES] : make_float2(0.0f, 0.0f);
            values[s] = s < wide.splits ? *reinterpret_cast<const float4*>(outputs + s * QUERIES * HEAD_DIM)
                                        : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
        for (int s = 0; s < FEW_SPLITS; ++s)
            if (found[s].y > 0.0f) total.highest = fmaxf(total.highest, found[s].x);
#pragma unroll
        for (int s = 0; s < FEW_SPLITS; ++s) {
            const float weight = weight_of(found[s], total.highest);
            total.weight = fmaf(weight, found[s].y, total.weight);
            y[0] = fmaf(weight, values[s].x, y[0]);
            y[1] = fmaf(weight, values[s].y, y[1]);
            y[2] = fmaf(weight, values[s].z, y[2]);
            y[3] = fmaf(weight, values[s].w, y[3]);
        }
        store(p, own, head, index, column, y, total);
    } else {
        __shared__ float weights[MOST_SPLITS];
        __shared__ alignas(16) float shares[SHARES][OWN * COLUMNS];
        __shared__ Total common;
        if (threadIdx.x < 32) {
            for (int s = threadIdx.x; s < wide.splits; s += 32) {
                const float2 found = sums[int64_t(s) * QUERIES];
                if (found.y > 0.0f) total.highest = fmaxf(total.highest, found.x);
            }
#pragma unroll
            for (int mask = 16; mask > 0; mask /= 2)
                total.highest = fmaxf(total.highest, __shfl_xor_sync(~0u, total.highest, mask));
            for (int s = threadIdx.x; s < wide.splits; s += 32) {
                const float2 found = sums[int64_t(s) * QUERIES];
                weights[s] = weight_of(found, total.highest);
                total.weight = fmaf(weights[s], found.y, total.weight);
            }
#pragma unroll
            for (int mask = 16; mask > 0; mask /= 2) total.weight += __shfl_xor_sync(~0u, total.weight, mask);
            if (threadIdx.x == 0) common = total;
        }
        __syncthreads();
        const int share = threadIdx.x / OWN;
#pragma unroll 8
        for (int s = share; s < wide.splits; s += SHARES) {
            const float4 values = *reinterpret_cast<const float4*>(outputs + int64_t(s) * QUERIES * HEAD_DIM);
            y[0] = fmaf(weights[s], values.x, y[0]);
            y[1] = fmaf(weights[s], values.y, y[1]);
            y[2] = fmaf(weights[s], values.z, y[2]);
            y[3] = fmaf(weights[s], values.w, y[3]);
        }
        *reinterpret_cast<float4*>(&shares[share][threadIdx.x % OWN * COLUMNS]) = make_float4(y[0], y[1], y[2], y[3]);
        __syncthreads();
        if (share > 0) return;
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
            y[i] = 0.0f;
#pragma unroll
            for (int j = 0; j < SHARES; ++j) y[i] += shares[j][threadIdx.x * COLUMNS + i];
        }
        store(p, own, head, index, column, y, common);
    }
}
