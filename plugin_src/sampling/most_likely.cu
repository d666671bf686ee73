// The most likely token of each row of logits, the first of equals; -1 where a logit is NaN or +inf, or all are -inf.
//
// Grid: slices x rows, THREADS threads. The last block of a row to finish writes its token. Macros: THREADS; VECTOR
// (logits of an access: 1 or 4); ACCESSES (of a thread).
#include "common/access.cuh"
#include "common/integers.cuh"
#include "common/launch.cuh"
#include "sampling/weights.cuh"

struct MostLikely {
    const float* logits;  // [rows, vocab]
    int64_t* tokens;      // [rows], in host memory
    int64_t* copy;        // [rows], the same for the next step
    uint64_t* best;       // [rows], zero between kernels: the largest key of the slices done so far
    int* arrived;         // [rows], zero between kernels: slices done so far
    int vocab;
    int slice;            // logits of a slice: VECTOR * ACCESSES * THREADS
};

namespace {

constexpr int WARPS = THREADS / 32;
constexpr uint64_t BAD = ~uint64_t(0);

// Larger for larger logits, and of equal ones for the first; the sum makes 0 of negative 0.
__device__ __forceinline__ uint64_t key_of(float logit, int token) {
    return uint64_t(ordered(__fadd_rn(logit, 0.0f))) << 32 | ~unsigned(token);
}

__device__ __forceinline__ uint64_t largest_of_warp(uint64_t key) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        const uint64_t other = __shfl_xor_sync(0xffffffffu, key, distance);
        key = other > key ? other : key;
    }
    return key;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) most_likely(const __grid_constant__ MostLikely params) {
    __shared__ uint64_t keys[WARPS];
    const int row = blockIdx.y, begin = blockIdx.x * params.slice, end = min(begin + params.slice, params.vocab);
    const float* logits = params.logits + int64_t(row) * params.vocab;
    let_later_kernels_start();
    wait_for_earlier_kernels();
    float largest = minus_infinity();
    int token = begin;
    bool bad = false;
    // All that the thread reads, before it uses any of it.
    float some[ACCESSES][VECTOR];
#pragma unroll
    for (int a = 0; a < ACCESSES; a++) {
        const int i = begin + VECTOR * (a * THREADS + int(threadIdx.x));
#pragma unroll
        for (int j = 0; j < VECTOR; j++) some[a][j] = minus_infinity();
        if (i >= end) continue;
        Access<float, VECTOR> access;
        access.load(logits + i);
        access.unpack(some[a]);
    }
#pragma unroll
    for (int a = 0; a < ACCESSES; a++) {
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            bad |= !(some[a][j] < __int_as_float(0x7f800000));
            if (some[a][j] > largest) {
                largest = some[a][j];
                token = begin + VECTOR * (a * THREADS + int(threadIdx.x)) + j;
            }
        }
    }
    uint64_t key = largest_of_warp(bad ? BAD : key_of(largest, token));
    if (threadIdx.x % 32 == 0) keys[threadIdx.x / 32] = key;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    key = largest_of_warp(threadIdx.x < WARPS ? keys[threadIdx.x] : 0);
    if (threadIdx.x != 0) return;
    unsigned long long* best = reinterpret_cast<unsigned long long*>(params.best) + row;
    atomicMax(best, static_cast<unsigned long long>(key));
    __threadfence();
    if (atomicAdd(&params.arrived[row], 1) != int(gridDim.x) - 1) return;
    __threadfence();
    const uint64_t found = atomicExch(best, 0ull);
    params.arrived[row] = 0;
    const bool finite = found != BAD && unsigned(found >> 32) != ordered(minus_infinity());
    params.tokens[row] = params.copy[row] = finite ? int64_t(~unsigned(found)) : -1;
}
