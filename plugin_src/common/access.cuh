// Runs of elements that move as one access of 2 to 16 bytes, and their conversion two at a time.
#pragma once

#include "common/bytes.cuh"
#include "common/element.cuh"

// The unsigned word, or words, of an access.
template <int BYTES>
struct AccessWord;
template <>
struct AccessWord<2> {
    using type = unsigned short;
};
template <>
struct AccessWord<4> {
    using type = unsigned;
};
template <>
struct AccessWord<8> {
    using type = uint2;
};
template <>
struct AccessWord<16> {
    using type = uint4;
};

// Two elements in one register; element 0 is the low half.
__device__ __forceinline__ float2 float_pair(unsigned pair, __nv_bfloat16) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
__device__ __forceinline__ float2 float_pair(unsigned pair, __half) {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}
__device__ __forceinline__ unsigned pair_from_floats(float low, float high, __nv_bfloat16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
}
__device__ __forceinline__ unsigned pair_from_floats(float low, float high, __half) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
}

// N elements of T, N * sizeof(T) bytes at an address that is a multiple of that.
template <typename T, int N>
struct Access {
    using Word = typename AccessWord<N * sizeof(T)>::type;
    Word word;

    __device__ __forceinline__ void load(const T* from) { word = *reinterpret_cast<const Word*>(from); }
    __device__ __forceinline__ void store(T* to) const { *reinterpret_cast<Word*>(to) = word; }
    // Memory that is touched once per step: the first to leave the caches.
    __device__ __forceinline__ void load_streamed(const T* from) { word = __ldcs(reinterpret_cast<const Word*>(from)); }
    __device__ __forceinline__ void store_streamed(T* to) const { __stcs(reinterpret_cast<Word*>(to), word); }

    __device__ __forceinline__ void unpack(float* to) const {
        if constexpr (sizeof(T) == 1) {
#pragma unroll
            for (int i = 0; i < N; i += 4)
                floats_from_bytes(to + i, reinterpret_cast<const unsigned*>(&word)[i / 4], T());
        } else if constexpr (sizeof(T) == 4) {
#pragma unroll
            for (int i = 0; i < N; ++i) to[i] = reinterpret_cast<const float*>(&word)[i];
        } else if constexpr (N == 1) {
            to[0] = to_float(*reinterpret_cast<const T*>(&word));
        } else {
#pragma unroll
            for (int i = 0; i < N / 2; ++i) {
                const float2 pair = float_pair(reinterpret_cast<const unsigned*>(&word)[i], T());
                to[2 * i] = pair.x;
                to[2 * i + 1] = pair.y;
            }
        }
    }
    // factor: what elements of 8 bits are multiplied by before they are rounded.
    __device__ __forceinline__ void pack(const float* from, float factor = 1.0f) {
        if constexpr (sizeof(T) == 1) {
#pragma unroll
            for (int i = 0; i < N; i += 4)
                reinterpret_cast<unsigned*>(&word)[i / 4] = bytes_from_floats(from + i, factor, T());
        } else if constexpr (sizeof(T) == 4) {
#pragma unroll
            for (int i = 0; i < N; ++i) reinterpret_cast<float*>(&word)[i] = from[i];
        } else if constexpr (N == 1) {
            *reinterpret_cast<T*>(&word) = from_float<T>(from[0]);
        } else {
#pragma unroll
            for (int i = 0; i < N / 2; ++i)
                reinterpret_cast<unsigned*>(&word)[i] = pair_from_floats(from[2 * i], from[2 * i + 1], T());
        }
    }
};
