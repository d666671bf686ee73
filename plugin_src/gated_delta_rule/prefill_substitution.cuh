// Inverse of a block of 16 x 16 on the diagonal of I + L, for L in one square or in blocks.
#pragma once

#include "gated_delta_rule/prefill_params.cuh"

// Column c of (I + L)^-1 by forward substitution, zeros for c from BLOCK on. transposed: L^T, whose (row, column) lies
// at LAYOUT::at(row, column); four neighbouring columns are one unit of 16 bytes.
template <typename LAYOUT>
__device__ __forceinline__ void substitute_forward(float (&column)[BLOCK], const float* transposed, int c) {
#pragma unroll
    for (int i = 0; i < BLOCK; ++i) column[i] = i == c ? 1.0f : 0.0f;
#pragma unroll
    for (int m = 0; m + 1 < BLOCK; ++m) {
#pragma unroll
        for (int first = (m + 1) / 4 * 4; first < BLOCK; first += 4) {
            const float4 four = *reinterpret_cast<const float4*>(transposed + LAYOUT::at(m, first));
            const float below[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int e = 0; e < 4; ++e)
                if (first + e > m) column[first + e] = fmaf(-below[e], column[m], column[first + e]);
        }
    }
}
