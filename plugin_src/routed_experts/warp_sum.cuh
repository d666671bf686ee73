// The sum of a value over the lanes of a warp, in a fixed order, known to all of them.
#pragma once

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}
