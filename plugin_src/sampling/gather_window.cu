// Gathers the tokens of the window in which the nucleus of a row with top_p alone ends, and sums the weights above it
// and of all tokens.
//
// Grid: slices x problems, THREADS threads. Macros: THREADS; VECTOR (tokens per access: 1 or 4).
#include "common/launch.cuh"
#include "sampling/part.cuh"

namespace {

constexpr int MOST_OF_SLICE = 2048;

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 5) gather_window(const __grid_constant__ Sampling params) {
    __shared__ float list_scores[MOST_OF_SLICE];
    __shared__ int list_tokens[MOST_OF_SLICE];
    __shared__ int count, start;
    const int problem = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    let_later_kernels_start();
    wait_for_earlier_kernels();
    const Settings settings = params.settings[problem];
    if (!has_bins(settings)) return;
    const RowState state = params.states[problem];
    if (state.best == NOT_FINITE) return;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();

    const Window window = params.windows[problem];
    const PowerBins bins(window.width);
    const float* scores = scores_of(params, settings);
    const int part = params.slice / PARTS, begin = blockIdx.x * params.slice + warp * part;
    const int end = min(begin + part, params.vocab);
    const float first = PowerBins::START + window.first;
    const float last = window.last < BINS - 1 ? PowerBins::START + window.last : __int_as_float(0x7f800000);
    WholeSum above, all;
    visit_part<VECTOR>(scores, begin, end, [&](const float* some, int token) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            const float power = power_of(some[i], state.peak, settings.scale), bin = bins.shifted(power);
            const WholeParts parts(exponential(power));
            all.add(parts);
            if (bin < first) {
                above.add(parts);
            } else if (bin <= last && power >= PowerBins::LEAST) {
                const int place = atomicAdd(&count, 1);
                if (place < MOST_OF_SLICE) {
                    list_scores[place] = some[i];
                    list_tokens[place] = token + i;
                }
            }
        }
    });
    const uint64_t sum_above = sum_of_warp(above.value()), sum_of_all = sum_of_warp(all.value());
    if (lane == 0) {
        const int64_t here = (static_cast<int64_t>(problem) * params.slices + blockIdx.x) * PARTS + warp;
        params.above_window[here] = sum_above;
        params.totals[here] = sum_of_all;
    }
    __syncthreads();
    const int own = count;
    // If a slice has too many tokens for its list, the count shows that the row has too many.
    if (threadIdx.x == 0) start = atomicAdd(&params.counts[problem], own <= MOST_OF_SLICE ? own : MOST_GATHERED + 1);
    __syncthreads();
    if (own > MOST_OF_SLICE) return;
    const int64_t row = static_cast<int64_t>(problem) * MOST_GATHERED;
    for (int i = threadIdx.x; i < own && start + i < MOST_GATHERED; i += THREADS) {
        params.gathered_scores[row + start + i] = list_scores[i];
        params.gathered_tokens[row + start + i] = list_tokens[i];
    }
}
