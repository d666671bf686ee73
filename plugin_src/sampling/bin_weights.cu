// Sums the weights of each slice by their size, for rows whose nucleus reaches below the score bound.
//
// Grid: slices x problems, THREADS threads. Macros: THREADS; VECTOR (tokens per access: 1 or 4).
#include "common/access.cuh"
#include "common/launch.cuh"
#include "sampling/select.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 6) bin_weights(const __grid_constant__ Sampling params) {
    __shared__ Select<THREADS> select;
    const int problem = blockIdx.y, lane = threadIdx.x % 32;
    let_later_kernels_start();
    wait_for_earlier_kernels();
    const Settings settings = params.settings[problem];
    if (settings.kind != SAMPLED || settings.top_k > 0 || settings.top_p >= 1.0) return;
    const RowState state = params.states[problem];
    if (state.best == NOT_FINITE) return;
    const int64_t row = static_cast<int64_t>(problem) * params.slices, here = row + blockIdx.x;
    const uint64_t total = sum_of_warp(lane < params.slices ? params.totals[row + lane] : 0);
    const uint64_t near = sum_of_warp(lane < params.slices ? params.near_totals[row + lane] : 0);
    if (!is_wide(settings, params.counts[problem], near, total)) return;

    const WeightBins bins(exponential(state.lowest, state.peak, settings.scale));
    const float* scores = scores_of(params, settings);
    const int begin = blockIdx.x * params.slice, end = min(begin + params.slice, params.vocab);
    select.clear();
#pragma unroll 2
    for (int from = begin; from < end; from += VECTOR * THREADS) {
        const int token = from + VECTOR * threadIdx.x;
        float some[VECTOR];
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
            const float weight = exponential(some[i], state.peak, settings.scale);
            const uint64_t whole = whole_weight(weight);
            select.add(whole > 0, bins.of(weight), whole);
        }
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS)
        params.bins[here * BINS + bin] = static_cast<uint64_t>(select.high[bin]) << 32 | select.low[bin];
}
