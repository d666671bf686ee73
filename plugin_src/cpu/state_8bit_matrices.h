// States of 8 bits to floats and back.
#pragma once

#include <algorithm>
#include <cmath>

#include "state_8bit.h"

namespace cpu {
namespace {

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

// Divides vectors of numbers by units, as exactly as a division, which takes several times as long.
template <class Isa>
struct Division {
    using F = typename Isa::F;
    F inverse, negative;

    explicit Division(const float* units) {
        float inverses[Isa::lanes];
        for (int i = 0; i < Isa::lanes; ++i) inverses[i] = 1.0f / units[i];
        inverse = Isa::load(inverses), negative = Isa::mul(Isa::load(units), Isa::all(-1.0f));
    }
    F of(F value) const {
        const F near = Isa::mul(value, inverse);
        return Isa::fma(Isa::fma(near, negative, value), inverse, near);
    }
};

// Units that are too small for that: their inverses may be infinite.
constexpr float smallest_unit = 1e-30f;

// Scales and units of rows or columns from their largest magnitudes; whether all units can be divided by so.
inline bool find_units(const float* largest, int64_t count, float* scales, float* units) {
    bool usual = true;
    for (int64_t c = 0; c < count; ++c) {
        scales[c] = scale_of(magnitude(largest + c));
        units[c] = unit_of(scales[c]);
        usual = usual && !(units[c] < smallest_unit);
    }
    return usual;
}

// `lanes` columns of `rows` rows, whose largest magnitudes are `largest`. Rows are `wide_stride` floats apart, those of
// `values` `stride` numbers.
template <class Isa>
void round_strip(int64_t rows, typename Isa::F largest, const float* wide, int64_t wide_stride, int8_t* values,
                 int64_t stride, float* scales) {
    float magnitudes[Isa::lanes], units[Isa::lanes];
    Isa::store(magnitudes, largest);
    if (find_units(magnitudes, Isa::lanes, scales, units)) {
        const Division<Isa> division(units);
        for (int64_t row = 0; row < rows; ++row)
            Isa::store_int8(values + row * stride, division.of(Isa::load(wide + row * wide_stride)));
        return;
    }
    for (int64_t row = 0; row < rows; ++row)
        for (int c = 0; c < Isa::lanes; ++c)
            values[row * stride + c] = rounded_int8(wide[row * wide_stride + c] / units[c]);
}

template <class Isa>
void round_columns(const State8& s, int8_t* values, float* scales, const float* wide) {
    int64_t c = 0;
    for (; c + Isa::lanes <= s.columns; c += Isa::lanes) {
        typename Isa::F largest = Isa::zero();
        for (int64_t row = 0; row < s.rows; ++row)
            largest = Isa::larger_magnitude(largest, Isa::load(wide + row * s.columns + c));
        round_strip<Isa>(s.rows, largest, wide + c, s.columns, values + c, s.columns, scales + c);
    }
    for (; c < s.columns; ++c) {
        int32_t largest = 0;
        for (int64_t row = 0; row < s.rows; ++row) largest = std::max(largest, magnitude(wide + row * s.columns + c));
        scales[c] = scale_of(largest);
        const float unit = unit_of(scales[c]);
        for (int64_t row = 0; row < s.rows; ++row) {
            values[row * s.columns + c] = rounded_int8(wide[row * s.columns + c] / unit);
        }
    }
}

template <class Isa>
void round_row(int64_t columns, const float* wide, int8_t* values, float* scale) {
    const int64_t whole = columns / Isa::lanes * Isa::lanes;
    float magnitudes[Isa::lanes];
    typename Isa::F most = Isa::zero();
    for (int64_t c = 0; c < whole; c += Isa::lanes) most = Isa::larger_magnitude(most, Isa::load(wide + c));
    Isa::store(magnitudes, most);
    int32_t largest = 0;
    for (int i = 0; i < Isa::lanes; ++i) largest = std::max(largest, magnitude(magnitudes + i));
    for (int64_t c = whole; c < columns; ++c) largest = std::max(largest, magnitude(wide + c));
    *scale = scale_of(largest);
    const float unit = unit_of(*scale);
    int64_t c = 0;
    if (!(unit < smallest_unit)) {
        float units[Isa::lanes];
        std::fill(units, units + Isa::lanes, unit);
        const Division<Isa> division(units);
        for (; c < whole; c += Isa::lanes) Isa::store_int8(values + c, division.of(Isa::load(wide + c)));
    }
    for (; c < columns; ++c) values[c] = rounded_int8(wide[c] / unit);
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
        for (int64_t row = 0; row < s.rows; ++row) {
            round_row<Isa>(s.columns, wide + row * s.columns, values + row * s.columns, scales + row);
        }
    }
}

}  // namespace
}  // namespace cpu
