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

// A row of floats: [w.columns].
template <class Isa>
void widen_row(const Weight& w, int64_t row, float* out) {
    const uint8_t* p = w.data + row * w.row_bytes();
    if (w.type == float32) {
        __builtin_memcpy(out, p, static_cast<size_t>(4 * w.columns));
        return;
    }
    bool is_bfloat = w.type == bfloat16;
    int64_t i = 0;
    for (; i + Isa::lanes <= w.columns; i += Isa::lanes) Isa::store(out + i, Isa::load16(p + 2 * i, is_bfloat));
    if (i < w.columns) Isa::store_part(out + i, Isa::load16_part(p + 2 * i, is_bfloat, w.columns - i), w.columns - i);
}

// Columns start to start + count of a tile's rows from `lane` on, scaled: [count, Isa::lanes].
template <class Isa>
void widen_tile(const Weight& w, const uint8_t* tile, int64_t lane, int64_t start, int64_t count, float* out) {
    const int64_t per_word = 32 / bits_of(w.type), at_once = w.groups_at_once();
    const int64_t span_bytes = span_scales + at_once * w.group / per_word * 4 * tile_rows;
    float scales[Isa::lanes];
    for (int64_t i = 0; i < count; ++i) {
        const int64_t k = start + i, place = k % per_word, group = k / w.group, span = group / at_once;
        const uint8_t* at = tile + span * span_bytes;
        if (i == 0 || k % w.group == 0) {
            Isa::store(scales, span_scales_at<Isa>(at, w.scale_type, group % at_once * tile_rows + lane));
        }
        const int64_t word_index = (k - span * at_once * w.group) / per_word;
        const uint8_t* word = at + span_scales + 4 * (word_index * tile_rows + lane);
        for (int r = 0; r < Isa::lanes; ++r) {
            int number;
            if (w.type == int4) {
                int pair = word[4 * r + place / 2];
                number = (place % 2 ? pair >> 4 : pair & 15) - 8;
            } else {
                number = static_cast<int8_t>(word[4 * r + place]);
            }
            out[i * Isa::lanes + r] = static_cast<float>(number) * scales[r];
        }
    }
}

}  // namespace
}  // namespace cpu
