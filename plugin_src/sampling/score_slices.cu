// Edits the logits of each row, and finds its largest score and, with top_k, a bound below which no token survives.
//
// Grid: slices x problems, THREADS threads. The last block of a row to finish combines the results of all. The bound
// is the top_k-th largest of the threads' largest scores: these belong to different tokens, so no token below it is
// among the top_k.
//
// Macros: THREADS; VECTOR (tokens per access: 1 or 4); MOST_SLICE (tokens of a slice); MOST_SLICES.
#include "common/access.cuh"
#include "common/launch.cuh"
#include "sampling/weights.cuh"

namespace {

constexpr int WARPS = THREADS / 32;

struct Best {
    float score;
    int token;

    __device__ __forceinline__ void take(float other, int other_token) {
        if (other > score || (other == score && other_token < token)) {
            score = other;
            token = other_token;
        }
    }
    __device__ __forceinline__ void take_of_warp() {
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
            take(__shfl_xor_sync(0xffffffffu, score, distance), __shfl_xor_sync(0xffffffffu, token, distance));
    }
};

__device__ __forceinline__ float least_of_warp(float value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        value = fminf(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

// NaN or +inf; -inf marks a token that the model rules out.
__device__ __forceinline__ bool is_bad(float logit) { return !(logit < __int_as_float(0x7f800000)); }

// The first edit in [begin, end) whose token is at least `token`.
__device__ __forceinline__ int first_edit(const Edit* edits, int begin, int end, int token) {
    while (begin < end) {
        const int middle = begin + (end - begin) / 2;
        if (edits[middle].token < token)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

__device__ __forceinline__ float edited(float score, const Edit& edit) {
    score = __fadd_rn(score, edit.bias);
    if (edit.factor != 1.0f) score = score < 0.0f ? __fmul_rn(score, edit.factor) : __fdiv_rn(score, edit.factor);
    return __fsub_rn(score, edit.minus);
}

// The number of the block's keys, `slices` per thread, that are at least `least`.
__device__ __forceinline__ int count_from(const unsigned* keys, int slices, unsigned least, int* sums) {
    int count = 0;
    for (int i = 0; i < slices; i++) count += keys[i * THREADS + threadIdx.x] >= least;
    count = __reduce_add_sync(0xffffffffu, count);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = count;
    __syncthreads();
    count = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) count += sums[i];
    return count;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 6) score_slices(const __grid_constant__ Sampling params) {
    __shared__ unsigned is_edited[MOST_SLICE / 32];
    __shared__ unsigned keys[MOST_SLICES * THREADS];
    __shared__ Best bests[WARPS];
    __shared__ int sums[WARPS];
    __shared__ int broken[WARPS];
    __shared__ float lows[WARPS];
    __shared__ bool is_last;
    const int problem = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    let_later_kernels_start();
    wait_for_earlier_kernels();
    const Settings settings = params.settings[problem];
    if (settings.kind == IDLE) return;

    const int begin = blockIdx.x * params.slice, end = min(begin + params.slice, params.vocab);
    const float* logits = params.logits + static_cast<int64_t>(settings.row) * params.vocab;
    float* scores = params.scores + static_cast<int64_t>(settings.row) * params.vocab;
    const uint32_t* mask = params.masks + static_cast<int64_t>(settings.row) * ((params.vocab + 31) / 32);
    const bool writes = settings.masked || settings.edits_begin < settings.edits_end;
    int first = 0, last = 0;
    if (settings.edits_begin < settings.edits_end) {
        for (int i = threadIdx.x; i < MOST_SLICE / 32; i += THREADS) is_edited[i] = 0;
        first = first_edit(params.edits, settings.edits_begin, settings.edits_end, begin);
        last = first_edit(params.edits, first, settings.edits_end, end);
        __syncthreads();
        for (int i = first + threadIdx.x; i < last; i += THREADS) {
            const int place = params.edits[i].token - begin;
            atomicOr(&is_edited[place / 32], 1u << (place % 32));
        }
        __syncthreads();
    }

    Best best = {minus_infinity(), params.vocab};
    bool bad = false;
    float lowest = __int_as_float(0x7f800000);
    if (writes) {
        for (int token = begin + threadIdx.x; token < end; token += THREADS) {
            float score = logits[token];
            bad |= is_bad(score);
            const int place = token - begin;
            if (settings.masked && !(mask[token / 32] >> (token % 32) & 1u)) score = minus_infinity();
            if (first < last && (is_edited[place / 32] >> (place % 32) & 1u))
                score = edited(score, params.edits[first_edit(params.edits, first, last, token)]);
            scores[token] = score;
            lowest = fminf(lowest, score);
            best.take(score, token);
        }
    } else {
#pragma unroll 4
        for (int token = begin + VECTOR * threadIdx.x; token < end; token += VECTOR * THREADS) {
            Access<float, VECTOR> access;
            float some[VECTOR];
            access.load(logits + token);
            access.unpack(some);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                bad |= is_bad(some[i]);
                lowest = fminf(lowest, some[i]);
                if (some[i] > best.score) best = {some[i], token + i};
            }
        }
    }
    const int64_t here = static_cast<int64_t>(problem) * params.slices + blockIdx.x;
    params.peaks[here * THREADS + threadIdx.x] = best.score;
    best.take_of_warp();
    const bool warp_is_bad = __any_sync(0xffffffffu, bad);
    lowest = least_of_warp(lowest);
    if (lane == 0) {
        bests[warp] = best;
        broken[warp] = warp_is_bad;
        lows[warp] = lowest;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int any = 0;
        for (int i = 0; i < WARPS; i++) {
            best.take(bests[i].score, bests[i].token);
            any |= broken[i];
            lowest = fminf(lowest, lows[i]);
        }
        params.slice_best[3 * here] = __float_as_int(best.score);
        params.slice_best[3 * here + 1] = any ? NOT_FINITE : best.token;
        params.slice_best[3 * here + 2] = __float_as_int(lowest);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(&params.arrived[problem], 1) == params.slices - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();

    const int64_t row = static_cast<int64_t>(problem) * params.slices;
    Best of_row = {minus_infinity(), params.vocab};
    int least = 0;  // below 0 where a slice is not finite
    lowest = __int_as_float(0x7f800000);
    for (int i = lane; i < params.slices; i += 32) {
        const int token = __ldcg(&params.slice_best[3 * (row + i) + 1]);
        least = min(least, token);
        of_row.take(__int_as_float(__ldcg(&params.slice_best[3 * (row + i)])), token);
        lowest = fminf(lowest, __int_as_float(__ldcg(&params.slice_best[3 * (row + i) + 2])));
    }
    of_row.take_of_warp();
    lowest = least_of_warp(lowest);
    const bool row_is_bad = __reduce_min_sync(0xffffffffu, least) < 0 || of_row.score == minus_infinity();
    unsigned bound = 0;
    if (has_order(settings) && !has_bins(settings) && !row_is_bad) {
        for (int i = 0; i < params.slices; i++)
            keys[i * THREADS + threadIdx.x] = ordered(__ldcg(&params.peaks[(row + i) * THREADS + threadIdx.x]));
        for (int bit = 31; bit >= 16; bit--)
            if (count_from(keys, params.slices, bound | 1u << bit, sums) >= settings.top_k) bound |= 1u << bit;
    }
    if (threadIdx.x == 0) {
        RowState state;
        state.peak = of_row.score;
        state.best = row_is_bad ? NOT_FINITE : of_row.token;
        // Keys below that of -inf belong to no number.
        state.bound = bound <= ordered(minus_infinity()) ? minus_infinity() : score_of(bound);
        state.lowest = lowest;
        params.states[problem] = state;
        params.counts[problem] = 0;
        params.arrived[problem] = 0;
    }
}
