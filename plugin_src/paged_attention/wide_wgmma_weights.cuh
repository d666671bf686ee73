// What one warpgroup of wide_wgmma.cu does: scores of all queries, and the weights of keys that follow from them.
//
// Accumulators are [key][query]: s[4 * n + 2 * h + e] is key 16 * warp + g + 8 * h and query 8 * n + 2 * t + e.
#pragma once

#include "common/mma.cuh"
#include "paged_attention/prefill_softmax.cuh"
#include "paged_attention/wide_wgmma_shared.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int COUNT = QUERIES / 4;  // queries of a thread: index 2 * n + e

// Joins the threads of the warpgroup; whether `some` is true in any of them.
__device__ __forceinline__ bool any_of_group(bool some) {
    int any;
    asm volatile(
        "{.reg .pred p, q; setp.ne.b32 p, %1, 0; barrier.cta.red.or.pred q, 1, 128, p; selp.b32 %0, 1, 0, q;}"
        : "=r"(any)
        : "r"(int(some))
        : "memory");
    return any;
}
__device__ __forceinline__ void join_group() { asm volatile("barrier.cta.sync 1, 128;" ::: "memory"); }

struct GroupSoftmax {
    float reference[COUNT];  // score that has weight 1, before the factor; -infinity: no score yet
    float sum[COUNT];        // weights of this thread's keys

    __device__ __forceinline__ GroupSoftmax() {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) reference[i] = minus_infinity(), sum[i] = 0.0f;
    }
    // Raises references that scores exceed by more than LAG. Whether any did; then the corrections are in memory.
    __device__ __forceinline__ bool follow(Shared& shared, const float (&s)[2 * COUNT], float (&correction)[COUNT],
                                           float factor) {
        const int warp = threadIdx.x % 128 / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        bool some = false;
        float most[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            most[i] = fmaxf(s[i / 2 * 4 + i % 2], s[i / 2 * 4 + 2 + i % 2]);
            some |= passes(most[i], i, factor);
        }
        if (!any_of_group(some)) return false;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
#pragma unroll
            for (int mask = 4; mask < 32; mask *= 2) most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], mask));
        exchange(shared, most, warp, g, t);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            float found = shared.most[0][8 * (i / 2) + 2 * t + i % 2];
#pragma unroll
            for (int w = 1; w < ALL_WARPS; ++w) found = fmaxf(found, shared.most[w][8 * (i / 2) + 2 * t + i % 2]);
            const float before = reference[i];
            const bool follows = passes(found, i, factor);
            if (follows) reference[i] = found;
            correction[i] = follows ? exp2_approx(before * factor - shift(i, factor)) : 1.0f;
            sum[i] *= correction[i];
        }
        return true;
    }
    // Scores become weights.
    __device__ __forceinline__ void weigh(float (&s)[2 * COUNT], float factor) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const float subtracted = shift(i, factor);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float& score = s[i / 2 * 4 + 2 * h + i % 2];
                score = exp2_approx(fmaf(score, factor, -subtracted));
                sum[i] += score;
            }
        }
    }
    // Sums of all keys, in every thread.
    __device__ __forceinline__ void add_up(Shared& shared) {
        const int warp = threadIdx.x % 128 / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
#pragma unroll
            for (int mask = 4; mask < 32; mask *= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], mask);
        join_group();  // every thread has read what was there
        exchange(shared, sum, warp, g, t);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            sum[i] = 0.0f;
#pragma unroll
            for (int w = 0; w < ALL_WARPS; ++w) sum[i] += shared.most[w][8 * (i / 2) + 2 * t + i % 2];
        }
    }

  private:
    // Every warp's numbers to memory.
    __device__ static __forceinline__ void exchange(Shared& shared, const float (&own)[COUNT], int warp, int g, int t) {
        if (g == 0)
#pragma unroll
            for (int i = 0; i < COUNT; ++i) shared.most[warp][8 * (i / 2) + 2 * t + i % 2] = own[i];
        join_group();
    }
    // Of two infinities: no.
    __device__ __forceinline__ bool passes(float score, int i, float factor) const {
        return (score - reference[i]) * factor > LAG;
    }
    // What is subtracted from scores times the factor. Nothing seen yet: 0, so that weights are 0 and not NaN.
    __device__ __forceinline__ float shift(int i, float factor) const {
        return reference[i] == minus_infinity() ? 0.0f : reference[i] * factor;
    }
};

// Hides keys that a query does not see.
__device__ __forceinline__ void hide_keys(float (&s)[2 * COUNT], const PagedAttention& p, const Work& work, int key) {
    const int at = key + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    const unsigned span = visible_span(p);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int query = work.tile * QUERIES + 8 * (i / 2) + threadIdx.x % 4 * 2 + i % 2;
        const int position = work.cached + query / p.group;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const unsigned back = position - (at + 8 * h);  // from the query to the key
            float& score = s[i / 2 * 4 + 2 * h + i % 2];
            score = at + 8 * h < work.end && back < span ? score : minus_infinity();
        }
    }
}

// Weights of all steps, and in the end the sums of weights: to memory, or as normalizers to shared memory.
__device__ __forceinline__ void weigh_keys(Shared& shared, const WideAttention& wide, const Work& work) {
    const PagedAttention& p = wide.call;
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, t = lane % 4;
    const float factor = score_factor(p);
    const int first_query = work.tile * QUERIES, last_query = first_query + QUERIES - 1;
    const int last_for_all = min(work.cached + first_query / p.group, work.end - 1);
    const int first_for_all = p.sliding_window > 0 ? work.cached + last_query / p.group - p.sliding_window + 1 : 0;
    const unsigned long long queries = operand(shared.queries);
    GroupSoftmax softmax;
    RingPlace<SLOTS> at_keys;
    RingPlace<WEIGHTS> at_weights;
    barrier_wait(&shared.queries_full, 0);
#pragma unroll 1
    for (int key = work.begin; key < work.end; key += KEYS) {
        wait_for_keys(shared, at_keys);
        const unsigned long long keys = operand(shared.keys[at_keys.slot]);
        float s[2 * COUNT];
        wgmma_fence();
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel)
#pragma unroll
            for (int k = 0; k < PANEL / 16; ++k)
                multiply_rows<DATA_T>(s, keys + panel * (KEY_PANEL >> 4) + k * NEXT_16_COLUMNS,
                                      queries + panel * (QUERY_PANEL >> 4) + k * NEXT_16_COLUMNS, panel + k != 0);
        wgmma_commit();
        wgmma_wait<0>();
        in_flight(s);
        at_keys.advance();
        if constexpr (SOFTCAP) bound_scores<false>(s, p);
        if (key < first_for_all || key + KEYS - 1 > last_for_all) hide_keys(s, p, work, key);
        float correction[COUNT];
        const bool corrected = softmax.follow(shared, s, correction, factor);
        softmax.weigh(s, factor);
        barrier_wait(&shared.weights_empty[at_weights.slot], at_weights.parity ^ 1);
        if (threadIdx.x % 128 == 0) shared.corrected[at_weights.slot] = corrected;
        if (corrected && warp == 0 && lane < 4)
#pragma unroll
            for (int i = 0; i < COUNT; ++i)
                shared.corrections[at_weights.slot][8 * (i / 2) + 2 * t + i % 2] = correction[i];
        // Matrix 2 * i + h of four: queries 8 * (n + i) on, keys 16 * warp + 8 * h on.
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n += 2) {
            const int query = 8 * (n + lane / 16) + lane % 8, unit = 2 * warp + lane / 8 % 2;
            const float* from = s + 4 * n;
            store_matrices_transposed(shared_address(shared.weights[at_weights.slot] +
                                                     panel_unit<QUERIES>(query, unit)),
                                      Mma<DATA_T>::pack(from[0], from[1]), Mma<DATA_T>::pack(from[2], from[3]),
                                      Mma<DATA_T>::pack(from[4], from[5]), Mma<DATA_T>::pack(from[6], from[7]));
        }
        fence_for_wgmma();
        __syncwarp();
        barrier_arrive_of_warp(&shared.weights_full[at_weights.slot]);
        at_weights.advance();
    }
    softmax.add_up(shared);
    if (warp != 0 || lane >= 4) return;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int query = 8 * (i / 2) + 2 * t + i % 2, index = work.tile * QUERIES + query;
        const float reference = softmax.reference[i] * factor;
        const float sink = p.sinks ? p.sinks[work.head * p.group + index % p.group] : minus_infinity();
        shared.normalizers[query] = 1.0f / (softmax.sum[i] + exp2_approx(sink * LOG2_E - reference));
        if (wide.outputs)
            *reinterpret_cast<float2*>(wide.sums + 2 * (work.part(wide) * QUERIES + query)) =
                make_float2(reference, softmax.sum[i]);
    }
}

#endif
