// Rows of a weight, and their scales, as float32.
#pragma once

#include "linear.h"

namespace linear {
namespace {

// count numbers of 16 bits.
template <class Isa>
void widen16(const uint8_t* p, int64_t count, bool is_bfloat, float* out) {
    int64_t i = 0;
    for (; i + Isa::lanes <= count; i += Isa::lanes) Isa::store(out + i, Isa::load16(p + 2 * i, is_bfloat));
    if (i < count) Isa::store_part(out + i, Isa::load16_part(p + 2 * i, is_bfloat, count - i), count - i);
}

template <class Isa>
void widen_floats(const uint8_t* p, int64_t count, Type type, float* out) {
    if (type == float32) {
        __builtin_memcpy(out, p, static_cast<size_t>(4 * count));
    } else {
        widen16<Isa>(p, count, type == bfloat16, out);
    }
}

// The scales of blocks of one row: [w.blocks()].
template <class Isa>
void block_scales(const Weight& w, int64_t row, float* out) {
    int64_t blocks = w.blocks(), scale_bytes = bits_of(w.scale_type) / 8;
    if (w.group == 0) {
        float whole;
        widen_floats<Isa>(w.scales, 1, w.scale_type, &whole);
        for (int64_t b = 0; b < blocks; ++b) out[b] = whole;
        return;
    }
    int64_t groups = w.columns / w.group, repeats = w.group / w.block;
    widen_floats<Isa>(w.scales + row * groups * scale_bytes, groups, w.scale_type, out);
    if (repeats > 1) {
        for (int64_t b = blocks - 1; b >= 0; --b) out[b] = out[b / repeats];
    }
}

// The numbers of one row, scaled: [w.columns]. scales: memory for [w.blocks()].
template <class Isa>
void widen_row(const Weight& w, int64_t row, float* out, float* scales) {
    const uint8_t* p = w.numbers + row * w.row_bytes();
    if (w.type != int4 && w.type != int8) return widen_floats<Isa>(p, w.columns, w.type, out);
    block_scales<Isa>(w, row, scales);
    for (int64_t b = 0; b < w.blocks(); ++b) {
        float scale = scales[b];
        for (int64_t k = b * w.block; k < (b + 1) * w.block; ++k) {
            int number = w.type == int8 ? static_cast<int8_t>(p[k])
                                        : (((k % 2 ? p[k / 2] >> 4 : p[k / 2] & 15) ^ 8) - 8);
            out[k] = static_cast<float>(number) * scale;
        }
    }
}

}  // namespace
}  // namespace linear
