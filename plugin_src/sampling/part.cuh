// The scores of one part of a row, which a warp visits.
#pragma once

#include "common/access.cuh"
#include "sampling/weights.cuh"

// Calls visit(some, token) with the scores `some` of N tokens from `token` on, -inf beyond `end`. All lanes take
// part in every call.
template <int N, typename Visit>
__device__ __forceinline__ void visit_part(const float* scores, int begin, int end, Visit visit) {
#pragma unroll 4
    for (int from = begin; from < end; from += N * 32) {
        const int token = from + N * (threadIdx.x % 32);
        float some[N];
        if (token < end) {
            Access<float, N> access;
            access.load(scores + token);
            access.unpack(some);
        } else {
#pragma unroll
            for (int i = 0; i < N; i++) some[i] = minus_infinity();
        }
        visit(some, token);
    }
}
