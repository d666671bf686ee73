// One warp and 16 positions of one KV head: copies of keys and values, scores, and weighted values, for the queries of
// the head's group.
//
// Positions are the rows of the scores, queries the columns: S^T = K Q^T and O^T = V^T P^T on tensor cores, where a
// group of up to 8 heads fills one tile of columns and the accumulators of O take half the registers of the usual
// order.
#pragma once

#include "common/math.cuh"
#include "paged_attention/decode_cache.cuh"

constexpr float LOG2_E = 1.44269504f;

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// Q^T as columns of a product: lane 4 * g + t has query g.
template <typename T>
struct QueryFragment {
    typename Mma<T>::B pairs;

    __device__ __forceinline__ void load(const T* query, int k, int t, bool valid) {
        if constexpr (IS_FP8) {  // in the order of load_keys()
            const uint2 four = valid ? *reinterpret_cast<const uint2*>(query + k + 4 * t) : make_uint2(0u, 0u);
            const float2 low = Mma<T>::unpack(four.x), high = Mma<T>::unpack(four.y);
            pairs.r[0] = Mma<T>::pack(low.x * Units::QUERY, high.x * Units::QUERY);
            pairs.r[1] = Mma<T>::pack(low.y * Units::QUERY, high.y * Units::QUERY);
        } else {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int column = k + 2 * t + 8 * i;
                pairs.r[i] = valid && column < HEAD_DIM ? *reinterpret_cast<const unsigned*>(query + column) : 0u;
            }
        }
    }
    __device__ __forceinline__ typename Mma<T>::B fragment() const { return pairs; }
};
template <>
struct QueryFragment<float> {
    float2 pair;

    __device__ __forceinline__ void load(const float* query, int k, int t, bool valid) {
        const int column = k + 2 * t;
        pair = valid && column < HEAD_DIM ? *reinterpret_cast<const float2*>(query + column) : make_float2(0.0f, 0.0f);
    }
    __device__ __forceinline__ Mma<float>::B fragment() const {
        Mma<float>::B b;
        Mma<float>::split(b.high[0], b.low[0], pair.x);
        Mma<float>::split(b.high[1], b.low[1], pair.y);
        return b;
    }
};

__device__ __forceinline__ unsigned turned_matrix(unsigned pairs) {
    unsigned turned;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pairs));
    return turned;
}

// Weights [position][query] in accumulators as the columns of a product over positions.
template <typename T>
__device__ __forceinline__ void weight_fragments(typename Mma<T>::B (&b)[TOKEN_STEPS], const float (&weights)[4], T) {
#pragma unroll
    for (int i = 0; i < 2; ++i) b[0].r[i] = turned_matrix(Mma<T>::pack(weights[2 * i], weights[2 * i + 1]));
}
__device__ __forceinline__ void weight_fragments(Mma<float>::B (&b)[TOKEN_STEPS], const float (&weights)[4], float) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int step = 0; step < TOKEN_STEPS; ++step) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int from = 4 * (2 * t + i) + g / 2;
            const float even = __shfl_sync(0xffffffffu, weights[2 * step], from);
            const float odd = __shfl_sync(0xffffffffu, weights[2 * step + 1], from);
            Mma<float>::split(b[step].high[i], b[step].low[i], g % 2 ? odd : even);
        }
    }
}

// Largest of a query's values: the lanes of one t hold different positions of the same queries.
__device__ __forceinline__ float largest_of_positions(float value) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}
__device__ __forceinline__ float sum_of_positions(float value) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

// Running softmax of a warp: scores are powers of two. A lane holds queries 2t and 2t + 1 of each tile; `sum` covers
// its own positions, `output` is O^T as accumulators, both relative to 2^largest.
struct WarpState {
    float largest[QUERY_TILES][2];
    float sum[QUERY_TILES][2];
    float output[QUERY_TILES][DIM_TILES][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int tile = 0; tile < QUERY_TILES; ++tile) {
#pragma unroll
            for (int i = 0; i < 2; ++i) largest[tile][i] = minus_infinity(), sum[tile][i] = 0.0f;
#pragma unroll
            for (int i = 0; i < DIM_TILES; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) output[tile][i][j] = 0.0f;
        }
    }
};

using QueryFragments = QueryFragment<DATA_T>[QUERY_TILES][DIM_STEPS];

// Scores of the step in units of log2, -infinity outside of positions low..high-1.
__device__ __forceinline__ void step_scores(float (&scores)[QUERY_TILES][4], const StepTiles& tiles,
                                            const QueryFragments& q, const PagedAttention& call, int low, int high) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < QUERY_TILES; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[tile][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < DIM_STEPS; step += AT_ONCE) {
        Products::A a[AT_ONCE];
        load_keys(a, tiles.keys(), step, lane);
#pragma unroll
        for (int i = 0; i < AT_ONCE && step + i < DIM_STEPS; ++i)
#pragma unroll
            for (int tile = 0; tile < QUERY_TILES; ++tile)
                Products::multiply(scores[tile], a[i], q[tile][step + i].fragment());
    }
    const bool capped = call.softcap != 0.0f;
    const float factor = capped ? call.scale / call.softcap * (2.0f * LOG2_E) : call.scale * LOG2_E;
    const float bound = call.softcap * LOG2_E;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int position = lane / 4 + i / 2 * 8;
        const float own = IS_FP8 ? factor * (tiles.scales()[position] * Units::SCORE) : factor;
#pragma unroll
        for (int tile = 0; tile < QUERY_TILES; ++tile) {
            float score = scores[tile][i] * own;
            // tanh(x) = 1 - 2 / (exp(2x) + 1), whose error is absolute: 1e-7 of the bound.
            if (capped) score = bound * (1.0f - __fdividef(2.0f, exp2_approx(score) + 1.0f));
            scores[tile][i] = position >= low && position < high ? score : minus_infinity();
        }
    }
}

// Weights become those of values as their bytes say. What is not seen has a weight of 0, and any scale.
__device__ __forceinline__ void scale_weights(float (&weights)[QUERY_TILES][4], const float* scales) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float scale = scales[threadIdx.x % 32 / 4 + i / 2 * 8] * Units::WEIGHT;
#pragma unroll
        for (int tile = 0; tile < QUERY_TILES; ++tile)
            weights[tile][i] = weights[tile][i] == 0.0f ? 0.0f : weights[tile][i] * scale;
    }
}

// Takes a step whose keys and values lie in `tiles` into the state. At least one of its positions is seen.
__device__ __forceinline__ void take_step(WarpState& state, const StepTiles& tiles, const QueryFragments& q,
                                          const PagedAttention& call, int low, int high) {
    const int lane = threadIdx.x % 32;
    float scores[QUERY_TILES][4];
    step_scores(scores, tiles, q, call, low, high);
    float shrink[QUERY_TILES][2];
    bool moved = false;
#pragma unroll
    for (int tile = 0; tile < QUERY_TILES; ++tile) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float before = state.largest[tile][i];
            const float now = fmaxf(before, largest_of_positions(fmaxf(scores[tile][i], scores[tile][i + 2])));
            moved |= now > before;
            shrink[tile][i] = exp2_approx(before - now);
            state.largest[tile][i] = now;
#pragma unroll
            for (int j = i; j < 4; j += 2) scores[tile][j] = exp2_approx(scores[tile][j] - now);
            state.sum[tile][i] = state.sum[tile][i] * shrink[tile][i] + (scores[tile][i] + scores[tile][i + 2]);
        }
    }
    if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
        for (int tile = 0; tile < QUERY_TILES; ++tile)
#pragma unroll
            for (int i = 0; i < DIM_TILES; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) state.output[tile][i][j] *= shrink[tile][j % 2];
    }
    if constexpr (IS_FP8) scale_weights(scores, tiles.scales() + STEP);
    Products::B weights[QUERY_TILES][TOKEN_STEPS];
#pragma unroll
    for (int tile = 0; tile < QUERY_TILES; ++tile) weight_fragments(weights[tile], scores[tile], DATA_T());
#pragma unroll
    for (int i = 0; i < DIM_TILES; i += AT_ONCE) {
        // Tensor cores cut what they add to: float sums over many steps are made apart and rounded.
        float apart[QUERY_TILES][4] = {};
#pragma unroll
        for (int step = 0; step < TOKEN_STEPS; ++step) {
            Products::A a[AT_ONCE];
            load_values(a, tiles.values(), i, step * Products::K, lane);
#pragma unroll
            for (int j = 0; j < AT_ONCE && i + j < DIM_TILES; ++j)
#pragma unroll
                for (int tile = 0; tile < QUERY_TILES; ++tile)
                    Products::multiply(sizeof(DATA_T) == 4 ? apart[tile] : state.output[tile][i + j], a[j],
                                       weights[tile][step]);
        }
        if (sizeof(DATA_T) == 4) {
#pragma unroll
            for (int tile = 0; tile < QUERY_TILES; ++tile)
#pragma unroll
                for (int j = 0; j < 4; ++j) state.output[tile][i][j] += apart[tile][j];
        }
    }
}
