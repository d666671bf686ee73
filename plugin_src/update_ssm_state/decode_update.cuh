// One token in a row of a state: the row's update, and its rounding to 8 bits with a factor chosen anew.
//
// Macros: those of decode_tile.cuh. The factor is the largest magnitude of the row over that of the type.
#pragma once

#include "update_ssm_state/decode_tile.cuh"

namespace {

using Code = ByteCode<STATE_T>;

__device__ __forceinline__ float max_of_row(float value) {
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        value = larger_magnitude(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

__device__ __forceinline__ void quantize_row(StateTile& tile, int p, const float (&values)[ELEMENTS]) {
    float largest = 0.0f;
#pragma unroll
    for (int e = 0; e < ELEMENTS; ++e) largest = larger_magnitude(largest, values[e]);
    const ByteScale<STATE_T> found(max_of_row(largest));
    tile.scales[p] = found.scale;
#pragma unroll
    for (int j = 0; j < UNITS_OF_LANE; ++j) tile.units[p][j].pack(values + j * STATE_ACCESS, found.factor);
}

// state = decay * state + written * B in row p; its state @ C in all lanes of the row.
__device__ __forceinline__ float update_row(StateTile& tile, int p, float decay, float written,
                                            const float (&B)[ELEMENTS], const float (&C)[ELEMENTS]) {
    float values[ELEMENTS];
    float sum = 0.0f;
    float offset = 0.0f;
    if constexpr (QUANTIZED) {
        decay *= tile.scales[p] * Code::UNIT;
        // Of int8: its rounding is 1/500 of the distance between two values of the state at most.
        offset = -Code::OFFSET * decay;
    }
#pragma unroll
    for (int j = 0; j < UNITS_OF_LANE; ++j) {
        tile.units[p][j].unpack(values + j * STATE_ACCESS);
#pragma unroll
        for (int e = j * STATE_ACCESS; e < (j + 1) * STATE_ACCESS; ++e) {
            values[e] = QUANTIZED ? fmaf(decay, values[e], fmaf(written, B[e], offset))
                                  : fmaf(written, B[e], decay * values[e]);
            sum = fmaf(values[e], C[e], sum);
        }
        if constexpr (!QUANTIZED) tile.units[p][j].pack(values + j * STATE_ACCESS);
    }
    if constexpr (QUANTIZED) quantize_row(tile, p, values);
    return sum_of_row(sum);
}

}  // namespace
