// Sums the weights of each slice, and gathers the candidates: the tokens that can survive the filters of a row.
//
// Grid: slices x problems, THREADS threads. Macros: THREADS; VECTOR (tokens per access: 1 or 4).
#include "common/access.cuh"
#include "common/launch.cuh"
#include "sampling/weights.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 6) weigh_slices(const __grid_constant__ Sampling params) {
    __shared__ uint64_t sums[THREADS / 32], near_sums[THREADS / 32];
    const int problem = blockIdx.y, lane = threadIdx.x % 32;
    let_later_kernels_start();
    wait_for_earlier_kernels();
    const Settings settings = params.settings[problem];
    if (settings.kind != SAMPLED && settings.kind != LISTED) return;
    const RowState state = params.states[problem];
    if (state.best == NOT_FINITE) return;

    const bool gathers = has_order(settings), weighs = settings.kind == LISTED || settings.top_k == 0;
    const float least = settings.kind == SAMPLED && !gathers ? settings.min_p : 0.0f;
    const float* scores = scores_of(params, settings);
    const int begin = blockIdx.x * params.slice, end = min(begin + params.slice, params.vocab);
    float* list_scores = params.candidate_scores + static_cast<int64_t>(problem) * MOST_CANDIDATES;
    int* list_tokens = params.candidate_tokens + static_cast<int64_t>(problem) * MOST_CANDIDATES;
    uint64_t sum = 0, near = 0;
#pragma unroll 4
    for (int from = begin; from < end; from += VECTOR * THREADS) {
        const int token = from + VECTOR * threadIdx.x;
        float some[VECTOR], largest = minus_infinity();
        if (token < end) {
            Access<float, VECTOR> access;
            access.load(scores + token);
            access.unpack(some);
        } else {
#pragma unroll
            for (int i = 0; i < VECTOR; i++) some[i] = minus_infinity();
        }
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            largest = fmaxf(largest, some[i]);
            if (weighs) {
                const float weight = exponential(some[i], state.peak, settings.scale);
                const uint64_t whole = weight >= least ? whole_weight(weight) : 0;
                sum += whole;
                if (some[i] >= state.bound) near += whole;
            }
        }
        if (!gathers || !__any_sync(0xffffffffu, largest >= state.bound)) continue;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            const bool is_candidate = some[i] >= state.bound && some[i] > minus_infinity();
            const unsigned candidates = __ballot_sync(0xffffffffu, is_candidate);
            if (!candidates) continue;
            int place = 0;
            if (lane == 0) place = atomicAdd(&params.counts[problem], __popc(candidates));
            place = __shfl_sync(0xffffffffu, place, 0) + __popc(candidates & ((1u << lane) - 1));
            if (is_candidate && place < MOST_CANDIDATES) {
                list_scores[place] = some[i];
                list_tokens[place] = token + i;
            }
        }
    }
    if (!weighs) return;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        near += __shfl_xor_sync(0xffffffffu, near, distance);
    }
    if (lane == 0) {
        sums[threadIdx.x / 32] = sum;
        near_sums[threadIdx.x / 32] = near;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < THREADS / 32; i++) {
            sum += sums[i];
            near += near_sums[i];
        }
        const int64_t here = static_cast<int64_t>(problem) * params.slices + blockIdx.x;
        params.totals[here] = sum;
        params.near_totals[here] = near;
    }
}
