// Vectors of 4 numbers in plain C++.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "linear.h"

namespace cpu {
namespace {

inline float float_of_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// float16 as float32, subnormal numbers, infinities and NaN included.
inline float float_of_half(uint16_t half) {
    uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, exponent = (half >> 10) & 31, fraction = half & 1023;
    if (exponent == 31) return float_of_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent) return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float small = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -small : small;
}

struct Portable {
    struct F { float at[4]; };
    struct I { uint8_t at[16]; };
    static constexpr int lanes = 4;
    static constexpr int rounded_tile = 4, tile = 4, panel_vectors = 1, dot_rows = 2, dot_inputs = 4;
    static constexpr int offset8 = 0;

    template <class Number>
    static F each(Number number) { return {{number(0), number(1), number(2), number(3)}}; }

    static F zero() { return all(0); }
    static F all(float value) { return {{value, value, value, value}}; }
    static F load(const float* p) { return each([&](int i) { return p[i]; }); }
    static F load_part(const float* p, int64_t count) { return each([&](int i) { return i < count ? p[i] : 0.0f; }); }
    static void store(float* p, F a) { std::memcpy(p, a.at, sizeof a.at); }
    static void store_part(float* p, F a, int64_t count) {
        std::memcpy(p, a.at, sizeof(float) * static_cast<size_t>(count));
    }
    static F fma(F a, F b, F sum) { return each([&](int i) { return a.at[i] * b.at[i] + sum.at[i]; }); }
    static F mul(F a, F b) { return each([&](int i) { return a.at[i] * b.at[i]; }); }
    static F max(F a, F b) { return each([&](int i) { return a.at[i] > b.at[i] ? a.at[i] : b.at[i]; }); }
    static F abs(F a) { return each([&](int i) { return std::fabs(a.at[i]); }); }
    // Of `most` and |value|, not negative, the one that is larger as an integer: NaN where one is NaN.
    static F larger_magnitude(F most, F value) {
        return each([&](int i) {
            const float other = std::fabs(value.at[i]);
            return std::isnan(other) || other > most.at[i] ? other : most.at[i];
        });
    }
    static F load_int8(const int8_t* p) { return each([&](int i) { return static_cast<float>(p[i]); }); }
    // The nearest integers, halfway to even, from -127 to 127; -127 for NaN: adding 1.5 * 2^23 drops the fraction.
    static void store_int8(int8_t* p, F a) {
        for (int i = 0; i < lanes; ++i) {
            const float limited = a.at[i] >= -127.0f ? (a.at[i] <= 127.0f ? a.at[i] : 127.0f) : -127.0f;
            p[i] = static_cast<int8_t>(static_cast<int32_t>((limited + 12582912.0f) - 12582912.0f));
        }
    }
    static float sum(F a) { return (a.at[0] + a.at[1]) + (a.at[2] + a.at[3]); }
    static float highest(F a) { return std::fmax(std::fmax(a.at[0], a.at[1]), std::fmax(a.at[2], a.at[3])); }

    static F load16(const uint8_t* p, bool is_bfloat) { return load16_part(p, is_bfloat, 4); }
    static F load16_part(const uint8_t* p, bool is_bfloat, int64_t count) {
        uint16_t raw[4] = {};
        std::memcpy(raw, p, static_cast<size_t>(2 * count));
        return each([&](int i) {
            return is_bfloat ? float_of_bits(static_cast<uint32_t>(raw[i]) << 16) : float_of_half(raw[i]);
        });
    }

    static I bytes(const void* p) {
        I a;
        std::memcpy(a.at, p, sizeof a.at);
        return a;
    }
    static I integers(int32_t value) {
        int32_t whole[4] = {value, value, value, value};
        return bytes(whole);
    }
    static I all_bytes(const int8_t* p) {
        int32_t four;
        std::memcpy(&four, p, sizeof four);
        return integers(four);
    }
    static F to_float(I a) {
        int32_t words[4];
        std::memcpy(words, a.at, sizeof words);
        return each([&](int i) { return static_cast<float>(words[i]); });
    }
    static I low_halves(I a) {
        for (auto& byte : a.at) byte &= 15;
        return a;
    }
    static I high_halves(I a) {
        for (auto& byte : a.at) byte >>= 4;
        return a;
    }
    static I weights8(I a) { return a; }
    static I dot8(I sum, I weights, I x) {
        int32_t words[4];
        std::memcpy(words, sum.at, sizeof words);
        for (int i = 0; i < 16; ++i) words[i / 4] += static_cast<int8_t>(weights.at[i]) * static_cast<int8_t>(x.at[i]);
        return bytes(words);
    }
    static I begin4(I sum) { return sum; }
    static I add4(I narrow, I halves, I x) { return dot8(narrow, halves, x); }
    static I end4(I, I narrow) { return narrow; }
    static F even_bfloats(I a) {
        uint32_t words[4];
        std::memcpy(words, a.at, sizeof words);
        return each([&](int i) { return float_of_bits(words[i] << 16); });
    }
    static F odd_bfloats(I a) {
        uint32_t words[4];
        std::memcpy(words, a.at, sizeof words);
        return each([&](int i) { return float_of_bits(words[i] & 0xffff0000); });
    }
    static void load_e4m3(const uint8_t* p, F (&out)[2]) {
        for (int half = 0; half < 2; ++half) {
            out[half] = each([&](int i) {
                const int bits = p[4 * half + i];
                return float_of_half(static_cast<uint16_t>((bits & 0x80) << 8 | (bits & 0x7f) << 7));
            });
        }
    }
    static I e2m1_numbers(I halves) {
        for (auto& byte : halves.at) byte = e2m1_sums[byte];
        return halves;
    }
    static void transpose(F (&rows)[lanes]) {
        for (int r = 0; r < lanes; ++r) {
            for (int c = 0; c < r; ++c) std::swap(rows[r].at[c], rows[c].at[r]);
        }
    }

    static void store_rounded(int8_t* p, F a) {
        for (int i = 0; i < 4; ++i) p[i] = a.at[i] == a.at[i] ? static_cast<int8_t>(std::lrint(a.at[i])) : 0;
    }
};

}  // namespace
}  // namespace cpu
