// Inputs rounded to 8 bits, block by block.
#pragma once

#include "linear.h"

namespace linear {
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

template <class Isa>
void round_row(const Weight& w, const float* x, int64_t row, const Rounded& out) {
    int8_t* numbers = out.numbers + row * out.stride;
    float* scales = out.scales + row * out.padded_blocks;
    int32_t* offsets = out.offsets + row * out.padded_blocks;
    int64_t half = out.stride / 2, blocks = w.blocks();
    for (int64_t b = 0; b < blocks; ++b) {
        int8_t part[128];
        scales[b] = round_block<Isa>(x + b * w.block, w.block, part);
        int32_t total = 0;
        for (int64_t i = 0; i < w.block; ++i) total += part[i];
        if (w.type == int4) {
            offsets[b] = -8 * total;
            for (int64_t i = 0; i < w.block / 2; ++i) {
                numbers[b * w.block / 2 + i] = part[2 * i];
                numbers[half + b * w.block / 2 + i] = part[2 * i + 1];
            }
        } else {
            offsets[b] = -Isa::offset8 * total;
            for (int64_t i = 0; i < w.block; ++i) numbers[b * w.block + i] = part[i];
        }
    }
    for (int64_t b = blocks; b < out.padded_blocks; ++b) scales[b] = 0, offsets[b] = 0;
    if (w.type == int4) {
        for (int64_t i = w.columns / 2; i < half; ++i) numbers[i] = numbers[half + i] = 0;
    } else {
        for (int64_t i = w.columns; i < out.stride; ++i) numbers[i] = 0;
    }
}

}  // namespace
}  // namespace linear
