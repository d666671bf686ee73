// Numbers and scales of a weight as float32.
#pragma once

#include "linear.h"

namespace cpu {
namespace {

// Stores the first `count` lanes of a, or all of them if there are fewer; none if count is not positive.
template <class Isa>
void store_lanes(float* p, typename Isa::F a, int64_t count) {
    if (count >= Isa::lanes) {
        Isa::store(p, a);
    } else if (count > 0) {
        Isa::store_part(p, a, count);
    }
}

// Scales of a span from number `at` on.
template <class Isa>
typename Isa::F span_scales_at(const uint8_t* span, Type type, int64_t at) {
    if (type == float32) return Isa::load(reinterpret_cast<const float*>(span) + at);
    return Isa::load16(span + 2 * at, type == bfloat16);
}

// What e4m3 numbers are multiplied with after `load_e4m3`.
constexpr float e4m3_unit = 256.0f;

inline bool has_e4m3_nan(const uint8_t* p, int64_t count) {
    uint8_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
        const uint8_t magnitude = p[i] & 127;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest == 127;
}

// The next `count` numbers of 2 * lanes, zeros behind them.
template <class Isa>
void load_e4m3_part(const uint8_t* p, int64_t count, typename Isa::F (&out)[2]) {
    uint8_t whole[2 * Isa::lanes] = {};
    __builtin_memcpy(whole, p, static_cast<size_t>(count));
    Isa::load_e4m3(whole, out);
}

// Columns start to start + count of a row of e4m3 numbers, scaled. With a NaN among them, all are NaN: then so is every
// product with the row.
template <class Isa>
void widen_e4m3_row(const Weight& w, int64_t row, int64_t start, int64_t count, float* out) {
    constexpr int64_t two = 2 * Isa::lanes;
    const uint8_t* p = w.data + row * w.row_bytes() + start;
    const auto unit = Isa::all(has_e4m3_nan(p, count) ? __builtin_nanf("") : e4m3_unit);
    for (int64_t k = 0; k < count;) {
        const int64_t group = (start + k) / w.group, after = (group + 1) * w.group - start;
        const int64_t end = after < count ? after : count;
        const auto scale = Isa::all(w.scales[row * w.groups() + group]);
        for (; k < end; k += two) {
            typename Isa::F numbers[2];
            end - k >= two ? Isa::load_e4m3(p + k, numbers) : load_e4m3_part<Isa>(p + k, end - k, numbers);
            for (int half = 0; half < 2; ++half) {
                const int64_t at = k + half * Isa::lanes;
                store_lanes<Isa>(out + at, Isa::mul(Isa::mul(numbers[half], unit), scale), end - at);
            }
        }
        k = end;
    }
}

// Columns start to start + count of a row of a weight that is not in tiles.
template <class Isa>
void widen_row(const Weight& w, int64_t row, int64_t start, int64_t count, float* out) {
    if (w.type == e4m3) return widen_e4m3_row<Isa>(w, row, start, count, out);
    const uint8_t* p = w.data + row * w.row_bytes() + start * bits_of(w.type) / 8;
    if (w.type == float32) {
        __builtin_memcpy(out, p, static_cast<size_t>(4 * count));
        return;
    }
    bool is_bfloat = w.type == bfloat16;
    int64_t i = 0;
    for (; i + Isa::lanes <= count; i += Isa::lanes) Isa::store(out + i, Isa::load16(p + 2 * i, is_bfloat));
    if (i < count) Isa::store_part(out + i, Isa::load16_part(p + 2 * i, is_bfloat, count - i), count - i);
}

// Columns start to start + count of the rows from `row` on, which are in one tile, scaled: [count, Isa::lanes],
// `stride` apart.
template <class Isa>
void widen_tile(const Weight& w, int64_t row, int64_t start, int64_t count, float* out, int64_t stride) {
    const uint8_t* tile = w.data + row / tile_rows * w.tile_bytes();
    const int64_t lane = row % tile_rows;
    const int64_t per_word = 32 / bits_of(w.type), at_once = w.groups_at_once();
    const int64_t span_bytes = span_scales + at_once * w.group / per_word * 4 * tile_rows;
    float scales[Isa::lanes];
    float zeros[Isa::lanes] = {};
    for (int64_t i = 0; i < count; ++i) {
        const int64_t k = start + i, place = k % per_word, group = k / w.group, span = group / at_once;
        const uint8_t* at = tile + span * span_bytes;
        if (i == 0 || k % w.group == 0) {
            Isa::store(scales, span_scales_at<Isa>(at, w.scale_type, group % at_once * tile_rows + lane));
            for (int r = 0; w.zeros && r < Isa::lanes; ++r) {
                zeros[r] = w.zeros[(row / tile_rows * w.groups() + group) * tile_rows + lane + r];
            }
            for (int r = 0; w.scales && r < Isa::lanes && row + r < w.rows; ++r) scales[r] *= w.scales[row + r];
        }
        const int64_t word_index = (k - span * at_once * w.group) / per_word;
        const uint8_t* word = at + span_scales + 4 * (word_index * tile_rows + lane);
        for (int r = 0; r < Isa::lanes; ++r) {
            float number;
            if (w.type == int8) {
                number = static_cast<int8_t>(word[4 * r + place]);
            } else {
                int pair = word[4 * r + place / 2], half = place % 2 ? pair >> 4 : pair & 15;
                number = w.type == int4 ? static_cast<float>(half - 8) : 0.5f * (e2m1_sums[half] - e2m1_offset);
            }
            out[i * stride + r] = (number - zeros[r]) * scales[r];
        }
    }
}

}  // namespace
}  // namespace cpu
