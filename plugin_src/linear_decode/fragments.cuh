// Fragments of tensor-core products of 16-bit types: pairs of elements in a word.
#pragma once

#include "common/element.cuh"

template <typename T>
__device__ __forceinline__ float2 float_pair(unsigned word) {
    const Vector<T, 2> pair = *reinterpret_cast<const Vector<T, 2>*>(&word);
    return make_float2(to_float(pair.data[0]), to_float(pair.data[1]));
}

template <typename T>
__device__ __forceinline__ unsigned word_from(float low, float high) {
    const Vector<T, 2> pair = {from_float<T>(low), from_float<T>(high)};
    return *reinterpret_cast<const unsigned*>(&pair);
}

// sums[16][8] += a[16][16] * b[16][8]. With lane = 4 * g + t, sums holds rows g and g + 8 at columns 2t and 2t + 1; a
// holds rows g and g + 8 for the inputs 2t and 2t + 1, then the same for the inputs 2t + 8 and 2t + 9; b column g.
template <typename T>
__device__ __forceinline__ void multiply_16x8x16(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                                 unsigned b0, unsigned b1);
template <>
__device__ __forceinline__ void multiply_16x8x16<__nv_bfloat16>(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2,
                                                                unsigned a3, unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply_16x8x16<__half>(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2,
                                                         unsigned a3, unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
