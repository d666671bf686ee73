// Inputs rounded to 8 bits, block by block.
#pragma once

#include "input_groups.h"
#include "linear.h"

namespace cpu {
namespace {

// Inputs of a block whose largest is below this round to zero: its reciprocal could overflow.
constexpr float smallest_input = 1e-35f;

// Rounds x [block] to out; returns its scale, which is NaN if an input is not finite.
template <class Isa>
float round_block(const float* x, int64_t block, int8_t* out) {
    auto high = Isa::zero(), invalid = Isa::zero();
    for (int64_t i = 0; i < block; i += Isa::lanes) {
        auto part = Isa::load(x + i);
        high = Isa::max(high, Isa::abs(part));
        invalid = Isa::fma(part, Isa::zero(), invalid);
    }
    float largest = Isa::highest(high);
    auto inverse = Isa::all(largest >= smallest_input ? 127.0f / largest : 0.0f);
    for (int64_t i = 0; i < block; i += Isa::lanes) {
        Isa::store_rounded(out + i, Isa::mul(Isa::load(x + i), inverse));
    }
    return largest * (1.0f / 127.0f) + Isa::sum(invalid);
}

// Of eight bytes, those at even places first.
inline void split_eight(int8_t* p) {
    uint64_t a, swapped;
    __builtin_memcpy(&a, p, 8);
    swapped = (a ^ (a >> 8)) & 0x0000ff000000ff00u, a ^= swapped ^ (swapped << 8);
    swapped = (a ^ (a >> 16)) & 0x00000000ffff0000u, a ^= swapped ^ (swapped << 16);
    __builtin_memcpy(p, &a, 8);
}

template <class Isa, Type type>
void round_blocks(const Weight& w, const float* x, int64_t m, const Rounded& out) {
    constexpr int bits = bits_of(type);
    constexpr int64_t word = 32 / bits;
    constexpr int offset = type == int4 ? 8 : type == e2m1 ? e2m1_offset : Isa::offset8;
    constexpr float unit = type == e2m1 ? 0.5f : 1.0f;
    const Group group = group_of<Isa::rounded_tile>(m, out.count);
    const int64_t blocks = w.blocks(), place = m - group.first;
    int8_t* numbers = out.numbers + group.first * w.columns + place * word;
    for (int64_t b = 0; b < blocks; ++b) {
        int8_t part[128];
        const int64_t at = group.first * blocks + b * group.size + place;
        out.scales[at] = unit * round_block<Isa>(x + b * w.block, w.block, part);
        int32_t total = 0;
        for (int64_t i = 0; i < w.block; ++i) total += part[i];
        out.offsets[at] = -offset * total, out.totals[at] = total;
        for (int64_t i = 0; i < w.block; i += word, numbers += group.size * word) {
            if (bits == 4) split_eight(part + i);
            __builtin_memcpy(numbers, part + i, word);
        }
    }
}

template <class Isa>
void round_row(const Weight& w, const float* x, int64_t m, const Rounded& out) {
    switch (w.type) {
        case int4: return round_blocks<Isa, int4>(w, x, m, out);
        case e2m1: return round_blocks<Isa, e2m1>(w, x, m, out);
        default: return round_blocks<Isa, int8>(w, x, m, out);
    }
}

}  // namespace
}  // namespace cpu
