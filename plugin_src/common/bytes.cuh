// Numbers of 8 bits, four in one register: int8 (signed char) and e4m3 (4 bits of exponent, 3 of mantissa).
#pragma once

#include <cuda_fp8.h>

#include "common/element.cuh"

struct E4m3 {
    unsigned char bits;
};

// How floats_from_bytes() makes floats: a number is UNIT * (its float - OFFSET). LARGEST: the largest number.
template <typename T>
struct ByteCode {
    static constexpr float UNIT = 1.0f, OFFSET = 0.0f, LARGEST = 1.0f;
};
template <>
struct ByteCode<signed char> {
    static constexpr float UNIT = 1.0f, OFFSET = 32896.0f, LARGEST = 127.0f;
};
template <>
struct ByteCode<E4m3> {
    static constexpr float UNIT = 256.0f, OFFSET = 0.0f, LARGEST = 448.0f;
};

// How numbers of which the largest magnitude is `largest` are rounded: they are their 8-bit forms times `scale`, which
// are the numbers times `factor`. Not a number where `largest` is not finite.
template <typename T>
struct ByteScale {
    static constexpr float SMALLEST = 1e-30f;  // keeps the inverse of a row of zeros finite
    float scale, factor;

    __device__ __forceinline__ explicit ByteScale(float largest) {
        const float limited = fmaxf(largest, SMALLEST);
        scale = largest <= 3.402823466e38f ? limited * (1.0f / ByteCode<T>::LARGEST) : __int_as_float(0x7fffffff);
        factor = __fdividef(ByteCode<T>::LARGEST, limited);
    }
};

// The larger of `most` and the magnitude of `value`; not a number where one is none.
__device__ __forceinline__ float larger_magnitude(float most, float value) {
    float found;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(most), "f"(fabsf(value)));
    return found;
}

// Built in place as 2^15 + 128 + value, one instruction each where a conversion has a quarter of the rate.
__device__ __forceinline__ void floats_from_bytes(float* to, unsigned bytes, signed char) {
    bytes ^= 0x80808080u;
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = __uint_as_float(__byte_perm(bytes, 0x47000000u, 0x7604 + (i << 4)));
}

// The same bits one place lower in a half are the number divided by 2^8, which is how much more its exponent is biased:
// exact for every number but NaN, and without the conversion that hardware has from sm_89 on.
__device__ __forceinline__ void floats_from_bytes(float* to, unsigned bytes, E4m3) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const unsigned high = __byte_perm(bytes, 0u, i ? 0x3424 : 0x1404);  // a byte in the upper half of 16 bits
        const unsigned halves = (high & 0x80008000u) | ((high >> 1) & 0x3f803f80u);
        const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&halves));
        to[2 * i] = pair.x;
        to[2 * i + 1] = pair.y;
    }
}

// Four floats times `factor`, rounded to nearest even. Adding 1.5 * 2^23 rounds and leaves the int8 in the low byte.
__device__ __forceinline__ unsigned bytes_from_floats(const float* from, float factor, signed char) {
    unsigned bits[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) bits[i] = __float_as_uint(fmaf(from[i], factor, 12582912.0f));
    return __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
}

// What is larger than 448 becomes that.
__device__ __forceinline__ unsigned bytes_from_floats(const float* from, float factor, E4m3) {
    const float2 first = make_float2(from[0] * factor, from[1] * factor);
    const float2 second = make_float2(from[2] * factor, from[3] * factor);
    const unsigned low = __nv_cvt_float2_to_fp8x2(first, __NV_SATFINITE, __NV_E4M3);
    const unsigned high = __nv_cvt_float2_to_fp8x2(second, __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}

// The e4m3 of every other byte as pairs of 16-bit numbers: bytes 0 and 2 in `even`, 1 and 3 in `odd`. Their bits are
// moved to where the wider number has its exponent and mantissa, which leaves them 2^LOWER too small and is exact for
// every number but NaN; no conversion of the hardware is as cheap for both types.
template <typename T>
struct PairCode;
template <>
struct PairCode<__half> {
    static constexpr int SHIFT = 1, LOWER = 8;
};
template <>
struct PairCode<__nv_bfloat16> {
    static constexpr int SHIFT = 4, LOWER = 120;
};

template <typename T>
__device__ __forceinline__ void pairs_from_e4m3(unsigned& even, unsigned& odd, unsigned bytes) {
    constexpr int SHIFT = PairCode<T>::SHIFT;
    odd = (bytes & 0x80008000u) | ((bytes & 0x7f007f00u) >> SHIFT);
    even = ((bytes & 0x00800080u) << 8) | ((bytes & 0x007f007fu) << (8 - SHIFT));
}
