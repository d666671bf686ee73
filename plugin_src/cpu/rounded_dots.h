// Products of a weight of 4 or 8 bits with a few rounded inputs. The rows of the weight are read one after another:
// several at a time would be read at half of the memory's speed.
#pragma once

#include "rounded_inputs.h"
#include "widen.h"

namespace linear {
namespace {

// The scales of Isa::lanes blocks of a row from block b on, zeros after the last. own: those of the row as float32, if
// not null; else they are stored for each block, in 16 bits.
template <class Isa>
typename Isa::F scales_part(const Weight& w, const uint8_t* row_scales, const float* own, int64_t b) {
    int64_t left = w.blocks() - b;
    if (own) return left >= Isa::lanes ? Isa::load(own + b) : Isa::load_part(own + b, left);
    bool is_bfloat = w.scale_type == bfloat16;
    return left >= Isa::lanes ? Isa::load16(row_scales + 2 * b, is_bfloat)
                              : Isa::load16_part(row_scales + 2 * b, is_bfloat, left);
}

// y[input][row] of `inputs` inputs from `input` on. lanes: those of a block.
template <class Isa, int bits, int lanes, int inputs>
void dot_row(const Weight& w, const Rounded& x, int64_t input, float* y, int64_t row, const float* own) {
    using F = typename Isa::F;
    using I = typename Isa::I;
    constexpr int64_t step = 4 * Isa::lanes;
    const int64_t bytes = w.row_bytes(), half = x.stride / 2, padded = x.padded_blocks;
    const uint8_t* numbers = w.numbers + row * bytes;
    const uint8_t* row_scales = w.scales + 2 * row * w.blocks();
    const int8_t* given = x.numbers + input * x.stride;
    const float* x_scales = x.scales + input * padded;
    const int32_t* offsets = x.offsets + input * padded;
    F sums[inputs];
    for (auto& sum : sums) sum = Isa::zero();
    F products[inputs];  // of the scales of Isa::lanes blocks
    auto add = [&](int64_t i, int lane, I raw) __attribute__((always_inline)) {
        I low = bits == 4 ? Isa::low_halves(raw) : Isa::weights8(raw);
        I high = bits == 4 ? Isa::high_halves(raw) : low;
        for (int m = 0; m < inputs; ++m) {
            const int8_t* p = given + m * x.stride + i;
            I sum;
            if constexpr (bits == 4) {
                sum = Isa::dot4(Isa::dot4(Isa::integers(0), low, Isa::bytes(p)), high, Isa::bytes(p + half));
            } else {
                sum = Isa::dot8(Isa::integers(0), low, Isa::bytes(p));
            }
            sums[m] = Isa::fma(Isa::to_float(sum), Isa::template spread<lanes>(products[m], lane), sums[m]);
        }
    };
    int64_t i = 0;
    for (int64_t b = 0; i < bytes; b += Isa::lanes) {
        F scales = scales_part<Isa>(w, row_scales, own, b);
        for (int m = 0; m < inputs; ++m) {
            products[m] = Isa::mul(scales, Isa::load(x_scales + m * padded + b));
            sums[m] = Isa::fma(products[m], Isa::to_float(Isa::load_integers(offsets + m * padded + b)), sums[m]);
        }
        if (i + lanes * step <= bytes) {
#pragma GCC unroll 4
            for (int j = 0; j < lanes; ++j) add(i + j * step, j * Isa::lanes, Isa::bytes(numbers + i + j * step));
            i += lanes * step;
            continue;
        }
        for (int j = 0; i < bytes; ++j, i += step) {
            add(i, j * Isa::lanes, i + step <= bytes ? Isa::bytes(numbers + i) : Isa::bytes_part(numbers + i, bytes - i));
        }
    }
    for (int m = 0; m < inputs; ++m) y[(input + m) * w.rows + row] = Isa::sum(sums[m]);
}

template <class Isa, int bits, int lanes>
void dot_rows(const Weight& w, const Rounded& x, int64_t count, float* y, int64_t first, int64_t last, float* memory) {
    const bool is_direct = w.group == w.block && w.scale_type != float32;
    for (int64_t row = first; row < last; ++row) {
        if (!is_direct) block_scales<Isa>(w, row, memory);
        const float* own = is_direct ? nullptr : memory;
        int64_t m = 0;
        for (; m + 4 <= count; m += 4) dot_row<Isa, bits, lanes, 4>(w, x, m, y, row, own);
        for (; m + 2 <= count; m += 2) dot_row<Isa, bits, lanes, 2>(w, x, m, y, row, own);
        if (m < count) dot_row<Isa, bits, lanes, 1>(w, x, m, y, row, own);
    }
}

template <class Isa>
void rounded_dots(const Weight& w, const Rounded& x, int64_t count, float* y, int64_t first, int64_t last,
                  uint8_t* scratch) {
    float* memory = reinterpret_cast<float*>(scratch);
    if (w.type == int4) {
        switch (w.block) {
            case 16: return dot_rows<Isa, 4, 2>(w, x, count, y, first, last, memory);
            case 32: return dot_rows<Isa, 4, 4>(w, x, count, y, first, last, memory);
            case 64: return dot_rows<Isa, 4, 8>(w, x, count, y, first, last, memory);
            default: return dot_rows<Isa, 4, 16>(w, x, count, y, first, last, memory);
        }
    }
    switch (w.block) {
        case 16: return dot_rows<Isa, 8, 4>(w, x, count, y, first, last, memory);
        case 32: return dot_rows<Isa, 8, 8>(w, x, count, y, first, last, memory);
        case 64: return dot_rows<Isa, 8, 16>(w, x, count, y, first, last, memory);
        default: return dot_rows<Isa, 8, 32>(w, x, count, y, first, last, memory);
    }
}

}  // namespace
}  // namespace linear
