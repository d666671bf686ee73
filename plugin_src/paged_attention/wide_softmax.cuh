// The softmax of one query over the keys that a step of wide_heads.cu has multiplied it with.
//
// Macros: DATA_T, HEAD_DIM, KEYS, SLOTS, SOFTCAP, as there.
#pragma once

#include "common/access.cuh"
#include "paged_attention/prefill_softmax.cuh"
#include "paged_attention/wide_ring.cuh"

constexpr int QUARTERS = 4;                           // of the columns, whose products are added here
constexpr int ROWS = QUERIES / WARPS, LANES = 32 / ROWS;  // queries of a warp, and lanes of each
constexpr int LANE_KEYS = KEYS / LANES;
constexpr int CHUNK = LANE_KEYS < 4 ? LANE_KEYS : 4;  // neighbouring keys of a lane
constexpr int SCORES_PITCH = KEYS + 8;                // so that no two lanes meet in a bank

using WeightLayout = TileLayout<DATA_T, KEYS>;

struct Weights {
    alignas(128) DATA_T tile[WeightLayout::elements(QUERIES)];
    float corrections[QUERIES];  // of sums so far; in the end the sums of weights
    float references[QUERIES];   // in the end: scores that have weight 1, in powers of two
};

// Keys c * LANES + lane * CHUNK to c * LANES + lane * CHUNK + CHUNK - 1 of a step are a lane's, for c = 0, CHUNK, ...
struct Softmax {
    float most = minus_infinity(), sum = 0.0f;
    int query = threadIdx.x / LANES, lane = threadIdx.x % LANES, position;

    __device__ __forceinline__ Softmax(const PagedAttention& p, const Work& work)
        : position(work.cached + (work.tile * QUERIES + threadIdx.x / LANES) / p.group) {}

    // Weights of the step whose first position is `key`, and what the sums so far are multiplied by. scores: those of
    // the four quarters.
    __device__ __forceinline__ void weigh(const float (&scores)[QUARTERS][QUERIES][SCORES_PITCH], Weights& found,
                                          const PagedAttention& p, int key, int end, float factor) {
        float s[LANE_KEYS] = {};
#pragma unroll
        for (int c = 0; c < LANE_KEYS; c += CHUNK)
#pragma unroll
            for (int q = 0; q < QUARTERS; ++q) {
                Access<float, CHUNK> read;
                float part[CHUNK];
                read.load(&scores[q][query][c * LANES + lane * CHUNK]);
                read.unpack(part);
#pragma unroll
                for (int i = 0; i < CHUNK; ++i) s[c + i] += part[i];
            }
        if constexpr (SOFTCAP) bound_scores<false>(s, p);
        float own = minus_infinity();
#pragma unroll
        for (int i = 0; i < LANE_KEYS; ++i) {
            const int at = key + i / CHUNK * CHUNK * LANES + lane * CHUNK + i % CHUNK;
            const unsigned back = position - at;  // from the query to the key
            s[i] = at < end && back < visible_span(p) ? s[i] : minus_infinity();
            own = fmaxf(own, s[i]);
        }
#pragma unroll
        for (int mask = LANES / 2; mask > 0; mask /= 2) own = fmaxf(own, __shfl_xor_sync(~0u, own, mask));
        const float now = fmaxf(most, own), subtracted = now == minus_infinity() ? 0.0f : now * factor;  // no key yet
        const float correction = exp2_approx(most * factor - subtracted);
        most = now;
        sum *= correction;
#pragma unroll
        for (int c = 0; c < LANE_KEYS; c += CHUNK) {
            DATA_T* to = found.tile + WeightLayout::at(query, c * LANES + lane * CHUNK);
#pragma unroll
            for (int i = 0; i < CHUNK; i += 2) {
                const float first = exp2_approx(s[c + i] * factor - subtracted);
                const float second = exp2_approx(s[c + i + 1] * factor - subtracted);
                sum += first + second;
                reinterpret_cast<unsigned*>(to)[i / 2] = Mma<DATA_T>::pack(first, second);
            }
        }
        if (lane == 0) found.corrections[query] = correction;
    }
    __device__ __forceinline__ void finish(Weights& found, float factor) {
#pragma unroll
        for (int mask = LANES / 2; mask > 0; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
        if (lane == 0) found.corrections[query] = sum, found.references[query] = most * factor;
    }
};
