// States of 8 bits to floats and back. The loops are plain: compilers turn them into vectors of each instruction set.
#pragma once

#include <algorithm>
#include <cmath>

#include "state_8bit.h"

namespace cpu {
namespace {

// Columns whose largest magnitudes are in memory at once.
constexpr int64_t state_columns = 64;
constexpr float largest_int8 = 127.0f;

typedef int32_t __attribute__((may_alias)) FloatBits;

// As integers, magnitudes have the order of their numbers; infinity comes after these, and NaN after infinity.
inline int32_t magnitude(const float* p) { return *reinterpret_cast<const FloatBits*>(p) & 0x7fffffff; }

inline float scale_of(int32_t largest) {
    float number;
    *reinterpret_cast<FloatBits*>(&number) = largest;
    return std::isfinite(number) ? number / largest_int8 : std::nanf("");
}

inline float unit_of(float scale) { return scale > 0.0f ? scale : 1.0f; }

// Nearest integer, halfway to even: adding 1.5 * 2^23 drops the fraction. What is not a number becomes -127.
inline int8_t rounded_int8(float units) {
    constexpr float shift = 12582912.0f;
    const float inside = units >= -largest_int8 ? (units <= largest_int8 ? units : largest_int8) : -largest_int8;
    return static_cast<int8_t>(static_cast<int32_t>((inside + shift) - shift));
}

template <class Isa>
void widen_states(const State8& s, int64_t first, int64_t last) {
    for (int64_t matrix = first; matrix < last; ++matrix) {
        const int8_t* values = s.values + matrix * s.numbers();
        const float* scales = s.scales + matrix * s.scale_count();
        float* wide = s.wide + matrix * s.numbers();
        for (int64_t row = 0; row < s.rows; ++row, values += s.columns, wide += s.columns) {
            if (s.by_column) {
                for (int64_t c = 0; c < s.columns; ++c) wide[c] = static_cast<float>(values[c]) * scales[c];
            } else {
                const float scale = scales[row];
                for (int64_t c = 0; c < s.columns; ++c) wide[c] = static_cast<float>(values[c]) * scale;
            }
        }
    }
}

template <class Isa>
void round_columns(const State8& s, int8_t* values, float* scales, const float* wide) {
    for (int64_t start = 0; start < s.columns; start += state_columns) {
        const int64_t count = std::min(state_columns, s.columns - start);
        int32_t largest[state_columns] = {};
        float units[state_columns];
        for (int64_t row = 0; row < s.rows; ++row) {
            const float* from = wide + row * s.columns + start;
            for (int64_t c = 0; c < count; ++c) largest[c] = std::max(largest[c], magnitude(from + c));
        }
        for (int64_t c = 0; c < count; ++c) {
            scales[start + c] = scale_of(largest[c]);
            units[c] = unit_of(scales[start + c]);
        }
        for (int64_t row = 0; row < s.rows; ++row) {
            const float* from = wide + row * s.columns + start;
            int8_t* to = values + row * s.columns + start;
            for (int64_t c = 0; c < count; ++c) to[c] = rounded_int8(from[c] / units[c]);
        }
    }
}

template <class Isa>
void round_states(const State8& s, int64_t first, int64_t last) {
    for (int64_t matrix = first; matrix < last; ++matrix) {
        int8_t* values = s.values + matrix * s.numbers();
        float* scales = s.scales + matrix * s.scale_count();
        const float* wide = s.wide + matrix * s.numbers();
        if (s.by_column) {
            round_columns<Isa>(s, values, scales, wide);
            continue;
        }
        for (int64_t row = 0; row < s.rows; ++row, values += s.columns, wide += s.columns) {
            int32_t largest = 0;
            for (int64_t c = 0; c < s.columns; ++c) largest = std::max(largest, magnitude(wide + c));
            scales[row] = scale_of(largest);
            const float unit = unit_of(scales[row]);
            for (int64_t c = 0; c < s.columns; ++c) values[c] = rounded_int8(wide[c] / unit);
        }
    }
}

}  // namespace
}  // namespace cpu
