// B and C of one group at one token, spread over the lanes as the rows of the state are.
//
// Macros: those of decode_tile.cuh; GROUP_ACCESS (elements of one access to B and C, a divisor of STATE_ACCESS).
#pragma once

#include "update_ssm_state/decode_tile.cuh"

namespace {

// A lane's elements of B or C, which are zero past STATE_SIZE.
struct GroupRow {
    Access<DATA_T, GROUP_ACCESS> parts[ELEMENTS / GROUP_ACCESS];

    __device__ __forceinline__ void load(const DATA_T* from, int lane) {
#pragma unroll
        for (int e = 0; e < ELEMENTS; e += GROUP_ACCESS) {
            const int j = e / STATE_ACCESS;
            if (!EXACT_LANES) parts[e / GROUP_ACCESS] = {};
            if (has_unit(lane, j))
                parts[e / GROUP_ACCESS].load(from + (j * LANES + lane) * STATE_ACCESS + e % STATE_ACCESS);
        }
    }
    __device__ __forceinline__ void unpack(float (&to)[ELEMENTS]) const {
#pragma unroll
        for (int e = 0; e < ELEMENTS; e += GROUP_ACCESS) parts[e / GROUP_ACCESS].unpack(to + e);
        // Kept as floats: the compiler would rather convert again at every use than hold more registers.
#pragma unroll
        for (int e = 0; e < ELEMENTS; ++e) asm volatile("" : "+f"(to[e]));
    }
};

}  // namespace
