// Powers of two that bring the largest elements of a thread's two columns of the state to between 1024 and 2048, where
// half has all its bits and does not overflow; and back.
#pragma once

struct ColumnSizes {
    static constexpr unsigned EXPONENT = 0xffu << 23, TARGET = (127u + 10) << 23, LEAST = 20u << 23, MOST = 220u << 23;
    float fit[2], back[2];

    __device__ __forceinline__ ColumnSizes(float first, float second) {
        const float largest[2] = {first, second};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const unsigned exponent = min(max(__float_as_uint(largest[i]) & EXPONENT, LEAST), MOST);
            back[i] = __uint_as_float(exponent - TARGET + (127u << 23));
            fit[i] = __uint_as_float(TARGET - exponent + (127u << 23));
        }
    }
};
