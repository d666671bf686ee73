// Weights of 4 or 8 bits in tiles, and what they stand for.
//
// A tile holds the codes of 8 weight rows at TILE_INPUTS inputs: for every VECTOR chunks of 32 inputs, by lane and then
// by chunk, the 8 codes of row lane / 4 from input 8 * (lane % 4) on, in the order of Codes. Then, where GROUP is not
// 0, scales [TILE_INPUTS / GROUP][8 rows], and with ZERO_POINTS zero points of that shape. Tiles are laid out as
// [inputs / TILE_INPUTS][outputs / 8], both rounded up, with zeros after the last input and row.
// A weight is (code - zero point) * scale * factor of its row * UNIT.
//
// Macros: DATA_T (bfloat16 or half); CODE (Int4, E2m1, signed char or E4m3); TILE_INPUTS (a multiple of 32 and of
// GROUP); GROUP (inputs of a scale: 16 or a multiple of 32; 0: no scales); BYTE_SCALES (1: scales are e4m3, none below
// 0; 0: they are DATA_T and hold the factor 2^LOWER that the numbers of Codes lack); ZERO_POINTS (1: in DATA_T).
#pragma once

#include "common/access.cuh"

struct Int4 {};  // -8 to 7, two's complement
struct E2m1 {};  // 0, 0.5, 1, 1.5, 2, 3, 4 and 6, with a sign

// Two numbers of a 16-bit type in a register.
template <typename T>
struct Pair;
template <>
struct Pair<__half> {
    using Type = __half2;
    static constexpr unsigned INT4_OFFSET = 0x4e004e00u;  // 24
    static constexpr int INT4_SHIFT = 6, E2M1_SHIFT = 3, E2M1_LOWER = 14, BYTE_SCALE = 7;
};
template <>
struct Pair<__nv_bfloat16> {
    using Type = __nv_bfloat162;
    static constexpr unsigned INT4_OFFSET = 0x41c041c0u;  // 24
    static constexpr int INT4_SHIFT = 3, E2M1_SHIFT = 6, E2M1_LOWER = 126, BYTE_SCALE = 118;
};

template <typename T>
__device__ __forceinline__ unsigned subtract_pairs(unsigned a, unsigned b) {
    using Two = typename Pair<T>::Type;
    const Two result = __hsub2(*reinterpret_cast<const Two*>(&a), *reinterpret_cast<const Two*>(&b));
    return *reinterpret_cast<const unsigned*>(&result);
}

template <typename T>
__device__ __forceinline__ unsigned multiply_pairs(unsigned a, unsigned b) {
    using Two = typename Pair<T>::Type;
    const Two result = __hmul2(*reinterpret_cast<const Two*>(&a), *reinterpret_cast<const Two*>(&b));
    return *reinterpret_cast<const unsigned*>(&result);
}

// 8 codes of C as four pairs of numbers of T, which are 2^LOWER too small. Codes of 4 bits lie in the order 0 2 4 6 1 3
// 5 7 from the lowest bits on, those of 8 bits in the order 0 2 1 3 4 6 5 7: these take the fewest instructions to
// unpack.
template <typename C, typename T>
struct Codes {
    using Words = uint2;
    static constexpr int BITS = 8, LOWER = 0;
    static __device__ __forceinline__ uint4 pairs(const uint2& words) {
        float low[4], high[4];
        floats_from_bytes(low, words.x, C());
        floats_from_bytes(high, words.y, C());
#pragma unroll
        for (int i = 0; i < 4; i++) low[i] -= ByteCode<C>::OFFSET, high[i] -= ByteCode<C>::OFFSET;
        return make_uint4(pair_from_floats(low[0], low[2], T()), pair_from_floats(low[1], low[3], T()),
                          pair_from_floats(high[0], high[2], T()), pair_from_floats(high[1], high[3], T()));
    }
};

// The bits of a byte are the last ones of 1024 + 128 + code.
template <>
struct Codes<signed char, __half> {
    using Words = uint2;
    static constexpr int BITS = 8, LOWER = 0;
    static __device__ __forceinline__ uint4 pairs(const uint2& words) {
        const unsigned low = words.x ^ 0x80808080u, high = words.y ^ 0x80808080u;
        constexpr unsigned ZERO = 0x64806480u;
        return make_uint4(subtract_pairs<__half>(__byte_perm(low, 0x64646464u, 0x4240), ZERO),
                          subtract_pairs<__half>(__byte_perm(low, 0x64646464u, 0x4341), ZERO),
                          subtract_pairs<__half>(__byte_perm(high, 0x64646464u, 0x4240), ZERO),
                          subtract_pairs<__half>(__byte_perm(high, 0x64646464u, 0x4341), ZERO));
    }
};

template <typename T>
struct Codes<E4m3, T> {
    using Words = uint2;
    static constexpr int BITS = 8, LOWER = PairCode<T>::LOWER;
    static __device__ __forceinline__ uint4 pairs(const uint2& words) {
        uint4 found;
        pairs_from_e4m3<T>(found.x, found.y, words.x);
        pairs_from_e4m3<T>(found.z, found.w, words.y);
        return found;
    }
};

// The 4 bits, with the sign's inverted, are the upper ones of the mantissa of 16 + 8 + code.
template <typename T>
struct Codes<Int4, T> {
    using Words = unsigned;
    static constexpr int BITS = 4, LOWER = 0;
    // Numbers that are 24 too large, of the codes at 4 * INDEX of each half.
    template <int INDEX>
    static __device__ __forceinline__ unsigned raised(unsigned word) {
        constexpr int LEFT = Pair<T>::INT4_SHIFT - 4 * INDEX;
        const unsigned moved = LEFT > 0 ? word << (LEFT > 0 ? LEFT : 0) : word >> (LEFT > 0 ? 0 : -LEFT);
        unsigned result;  // (moved & ...) ^ ...: by one instruction, where the compiler takes two
        asm("lop3.b32 %0, %1, %2, %3, 0x6a;"
            : "=r"(result)
            : "r"(moved), "r"(0x000f000fu << Pair<T>::INT4_SHIFT), "r"(Pair<T>::INT4_OFFSET));
        return result;
    }
    static __device__ __forceinline__ uint4 raised_pairs(unsigned word) {
        return make_uint4(raised<0>(word), raised<1>(word), raised<2>(word), raised<3>(word));
    }
    static __device__ __forceinline__ uint4 pairs(unsigned word) {
        constexpr unsigned OFFSET = Pair<T>::INT4_OFFSET;
        const uint4 raised = raised_pairs(word);
        return make_uint4(subtract_pairs<T>(raised.x, OFFSET), subtract_pairs<T>(raised.y, OFFSET),
                          subtract_pairs<T>(raised.z, OFFSET), subtract_pairs<T>(raised.w, OFFSET));
    }
};

// As PairCode does for e4m3: sign, exponent and mantissa are moved to where T has them.
template <typename T>
struct Codes<E2m1, T> {
    using Words = unsigned;
    static constexpr int BITS = 4, LOWER = Pair<T>::E2M1_LOWER;
    // Of the upper 4 bits of each half.
    static __device__ __forceinline__ unsigned pair(unsigned word) {
        constexpr int SHIFT = Pair<T>::E2M1_SHIFT;
        return (word & 0x80008000u) | ((word >> SHIFT) & (0x70007000u >> SHIFT));
    }
    static __device__ __forceinline__ uint4 pairs(unsigned word) {
        return make_uint4(pair(word << 12), pair(word << 8), pair(word << 4), pair(word));
    }
};

using Weights = Codes<CODE, DATA_T>;

constexpr int CHUNKS = TILE_INPUTS / 32;
constexpr int CODE_BYTES = TILE_INPUTS * Weights::BITS;
constexpr int SCALES = GROUP ? TILE_INPUTS / (GROUP ? GROUP : 1) : 0;  // of a row
constexpr int SCALE_BYTES = 8 * SCALES * (BYTE_SCALES ? 1 : 2);
constexpr int TILE_BYTES = CODE_BYTES + (ZERO_POINTS ? 2 : 1) * SCALE_BYTES;
// Chunks whose codes a lane reads in one access of 16 bytes, or less in a narrower tile.
constexpr int VECTOR = CHUNKS * Weights::BITS < 16 ? CHUNKS : 16 / Weights::BITS;
static_assert(TILE_BYTES % 16 == 0, "tiles are copied in pieces of 16 bytes");
static_assert(!BYTE_SCALES || (Weights::BITS == 4 && !ZERO_POINTS), "e4m3 scales are made for e2m1");
static_assert(!ZERO_POINTS || (GROUP && Weights::LOWER == 0), "zero points belong to groups of integers");

__host__ __device__ constexpr float power_of_two(int exponent) {
    float power = 1.0f;
    for (int i = 0; i < exponent; i++) power *= 2.0f;
    return power;
}
// e4m3 scales are brought as far up as the type goes, to 2^BYTE_SCALE times their value, which leaves UNIT.
constexpr float UNIT = BYTE_SCALES ? power_of_two(Weights::LOWER - Pair<DATA_T>::BYTE_SCALE) : 1.0f;

// A lane's codes of VECTOR chunks.
struct TileCodes {
    Vector<Weights::Words, VECTOR> words;

    __device__ __forceinline__ void load(const unsigned char* tile, int c) {
        words = reinterpret_cast<const Vector<Weights::Words, VECTOR>*>(tile)[c / VECTOR * 32 + threadIdx.x % 32];
    }
    __device__ __forceinline__ const Weights::Words& of(int c) const { return words.data[c % VECTOR]; }
};

// The scale of the lane's row in group `group`; with `offset` SCALE_BYTES its zero point.
__device__ __forceinline__ DATA_T tile_number(const unsigned char* tile, int group, int offset = 0) {
    return reinterpret_cast<const DATA_T*>(tile + CODE_BYTES + offset)[8 * group + threadIdx.x % 32 / 4];
}

__device__ __forceinline__ unsigned twice(DATA_T number) {
    return *reinterpret_cast<const unsigned short*>(&number) * 0x10001u;
}

// A lane's weights of `tile` at chunk `c` of 32 inputs, whose codes are `codes`.
__device__ __forceinline__ uint4 weights_from_codes(const Weights::Words& codes, const unsigned char* tile, int c) {
    const int lane = threadIdx.x % 32, t = lane % 4;
    uint4 pairs = Weights::pairs(codes);
    constexpr float RAISE = power_of_two(Weights::LOWER);
    unsigned scale = pair_from_floats(RAISE, RAISE, DATA_T());
    if constexpr (GROUP != 0) {
        const int group = GROUP < 32 ? 2 * c + t / 2 : 32 * c / (GROUP ? GROUP : 1);
        if constexpr (ZERO_POINTS) {
            const unsigned zero = twice(tile_number(tile, group, SCALE_BYTES));
            pairs = make_uint4(subtract_pairs<DATA_T>(pairs.x, zero), subtract_pairs<DATA_T>(pairs.y, zero),
                               subtract_pairs<DATA_T>(pairs.z, zero), subtract_pairs<DATA_T>(pairs.w, zero));
        }
        if constexpr (BYTE_SCALES) {
            // The bits of e4m3 in a float are 2^-120 times the number; no float is 2^238.
            constexpr float FIRST = power_of_two(119), SECOND = power_of_two(Pair<DATA_T>::BYTE_SCALE + 1);
            const unsigned byte = tile[CODE_BYTES + 8 * group + lane / 4];
            const float number = __uint_as_float(byte << 20) * FIRST * SECOND;
            scale = pair_from_floats(number, number, DATA_T());
        } else {
            scale = twice(tile_number(tile, group));
        }
    }
    if constexpr (GROUP != 0 || Weights::LOWER != 0) {
        pairs = make_uint4(multiply_pairs<DATA_T>(pairs.x, scale), multiply_pairs<DATA_T>(pairs.y, scale),
                           multiply_pairs<DATA_T>(pairs.z, scale), multiply_pairs<DATA_T>(pairs.w, scale));
    }
    return pairs;
}
