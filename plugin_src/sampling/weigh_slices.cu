// Sums the weights of each part of a row and gathers the candidates: the tokens that can survive top_k. Of rows with
// top_p alone it counts the tokens by score; the last block of a row to finish finds the window where the nucleus ends.
//
// Grid: slices x problems, THREADS threads. Macros: THREADS; VECTOR (tokens per access: 1 or 4).
#include "common/launch.cuh"
#include "sampling/part.cuh"

namespace {

constexpr int WARPS = THREADS / 32, OWN = BINS / THREADS;
static_assert(WARPS == PARTS, "each warp has a part");

struct Binning {
    unsigned counts[BINS];
    float2 sums[WARPS];
    uint64_t totals[WARPS];
    int first, last;
    bool is_last;

    // Called by the last block of a row. Counts only bound the sums of weights, so the window has all bins in which the
    // nucleus can end.
    __device__ __forceinline__ void find_window(const Sampling& params, const Settings& settings, int problem,
                                                const PowerBins& bins) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, parts = params.slices * PARTS;
        const int64_t row = static_cast<int64_t>(problem) * params.slices;
        uint64_t total = threadIdx.x < parts ? __ldcg(&params.totals[row * PARTS + threadIdx.x]) : 0;
        total = sum_of_warp(total);
        for (int i = threadIdx.x; i < BINS / 8; i += THREADS) {
            int own[8] = {};
            for (int slice = 0; slice < params.slices; slice++) {
                const uint4 some = __ldcg(reinterpret_cast<const uint4*>(params.bins + (row + slice) * BINS / 2) + i);
                const unsigned words[4] = {some.x, some.y, some.z, some.w};
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    own[2 * j] += words[j] & 0xffffu;
                    own[2 * j + 1] += words[j] >> 16;
                }
            }
#pragma unroll
            for (int j = 0; j < 8; j++) counts[8 * i + j] = own[j];
        }
        __syncthreads();
        // x: the most that the weights of the bins sum to; y: the least.
        float2 sum = {0.0f, 0.0f};
        float border = bins.most(threadIdx.x * OWN);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int bin = threadIdx.x * OWN + i;
            const float next = bin == BINS - 1 ? 0.0f : bins.most(bin + 1);
            sum.x += counts[bin] * border;
            sum.y += counts[bin] * next;
            border = next;
        }
        float2 running = sum;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const float x = __shfl_up_sync(0xffffffffu, running.x, distance);
            const float y = __shfl_up_sync(0xffffffffu, running.y, distance);
            if (lane >= distance) running = {running.x + x, running.y + y};
        }
        if (lane == 31) sums[warp] = running;
        if (lane == 0) totals[warp] = total;
        if (threadIdx.x == 0) {
            first = 0;
            last = BINS - 1;
        }
        __syncthreads();
        running = {running.x - sum.x, running.y - sum.y};
        total = 0;
        for (int i = 0; i < WARPS; i++) {
            total += totals[i];
            if (i < warp) running = {running.x + sums[i].x, running.y + sums[i].y};
        }
        const float share = static_cast<float>(settings.top_p) * (static_cast<float>(total) * 9.094947e-13f);  // 2^-40
        const float least = share * 0.9999f, most = share * 1.0001f;
        border = bins.most(threadIdx.x * OWN);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int bin = threadIdx.x * OWN + i;
            const float next = bin == BINS - 1 ? 0.0f : bins.most(bin + 1);
            const float2 after = {running.x + counts[bin] * border, running.y + counts[bin] * next};
            // The neighbouring bins are included. If rounding hides the bin from all threads, the window stays larger.
            if (running.x < least && after.x >= least) first = max(bin - 1, 0);
            if (running.y < most && after.y >= most) last = min(bin + 1, BINS - 1);
            running = after;
            border = next;
        }
        __syncthreads();
        if (threadIdx.x == 0) params.windows[problem] = {first, last, bins.width, 0};
    }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 5) weigh_slices(const __grid_constant__ Sampling params) {
    __shared__ Binning binning;
    const int problem = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    let_later_kernels_start();
    wait_for_earlier_kernels();
    const Settings settings = params.settings[problem];
    if (settings.kind != SAMPLED && settings.kind != LISTED) return;
    const RowState state = params.states[problem];
    if (state.best == NOT_FINITE) return;

    const bool bins_scores = has_bins(settings), gathers = has_order(settings) && !bins_scores;
    const bool weighs = settings.kind == LISTED || settings.top_k == 0;
    const float least = settings.kind == SAMPLED && !has_order(settings) ? settings.min_p : 0.0f;
    const float* scores = scores_of(params, settings);
    const int part = params.slice / PARTS, begin = blockIdx.x * params.slice + warp * part;
    const int end = min(begin + part, params.vocab);
    float* list_scores = params.gathered_scores + static_cast<int64_t>(problem) * MOST_GATHERED;
    int* list_tokens = params.gathered_tokens + static_cast<int64_t>(problem) * MOST_GATHERED;
    const PowerBins bins(PowerBins::width_for(power_of(state.lowest, state.peak, settings.scale)));
    if (bins_scores) {
        for (int i = threadIdx.x; i < BINS; i += THREADS) binning.counts[i] = 0;
        __syncthreads();
    }
    uint64_t sum = 0;
    if (bins_scores) {
        // Approximate: gather_window computes the exact sum.
        float rough = 0.0f;
        visit_part<VECTOR>(scores, begin, end, [&](const float* some, int token) {
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                const float power = power_of(some[i], state.peak, settings.scale);
                rough += __expf(power);
                if (power >= PowerBins::LEAST) atomicAdd(&binning.counts[bins.of(power)], 1u);
            }
        });
        sum = whole_weight(rough);
    } else {
        WholeSum whole;
        visit_part<VECTOR>(scores, begin, end, [&](const float* some, int token) {
            float largest = minus_infinity();
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                largest = fmaxf(largest, some[i]);
                if (!weighs) continue;
                const float weight = exponential(some[i], state.peak, settings.scale);
                if (weight >= least) whole.add(WholeParts(weight));
            }
            if (!gathers || !__any_sync(0xffffffffu, largest >= state.bound)) return;
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
        });
        sum = whole.value();
    }
    if (!weighs) return;
    sum = sum_of_warp(sum);
    const int64_t here = static_cast<int64_t>(problem) * params.slices + blockIdx.x;
    if (lane == 0) params.totals[here * PARTS + warp] = sum;
    if (!bins_scores) return;
    __syncthreads();
    for (int i = threadIdx.x; i < BINS / 2; i += THREADS)
        params.bins[here * BINS / 2 + i] = binning.counts[2 * i] | binning.counts[2 * i + 1] << 16;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) binning.is_last = atomicAdd(&params.arrived[problem], 1) == params.slices - 1;
    __syncthreads();
    if (!binning.is_last) return;
    __threadfence();
    if (threadIdx.x == 0) params.arrived[problem] = 0;
    binning.find_window(params, settings, problem, bins);
}
