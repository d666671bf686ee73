// Products of a weight of 4 or 8 bits with many rounded inputs: panels of rows are unpacked so that each lane computes
// one output, and used for all inputs.
#pragma once

#include "rounded_inputs.h"
#include "widen.h"

namespace linear {
namespace {

// A panel: dwords of inputs in the order of Rounded, each for all lanes; scales [blocks, lanes].
template <class Isa>
void pack_panel(const Weight& w, int64_t first, uint8_t* panel, float* scales, float* row_scales) {
    using I = typename Isa::I;
    constexpr int64_t vector = 4 * Isa::lanes;
    int64_t bytes = w.row_bytes(), half = bytes * Isa::lanes;
    int32_t starts[Isa::lanes];
    for (int r = 0; r < Isa::lanes; ++r) {
        // Lanes past the last row repeat it; their outputs are not stored.
        int64_t row = first + r < w.rows ? r : w.rows - 1 - first;
        starts[r] = static_cast<int32_t>(row * bytes);
        block_scales<Isa>(w, first + row, row_scales);
        for (int64_t b = 0; b < w.blocks(); ++b) scales[b * Isa::lanes + r] = row_scales[b];
    }
    I where = Isa::load_integers(starts);
    const uint8_t* numbers = w.numbers + first * bytes;
    for (int64_t i = 0; i < bytes; i += 4) {
        I raw = Isa::gather(numbers + i, where);
        uint8_t* out = panel + i / 4 * vector;
        if (w.type == int4) {
            I low = Isa::low_halves(raw), high = Isa::high_halves(raw);
            __builtin_memcpy(out, &low, vector);
            __builtin_memcpy(out + half, &high, vector);
        } else {
            I numbers8 = Isa::weights8(raw);
            __builtin_memcpy(out, &numbers8, vector);
        }
    }
}

template <class Isa, int bits, int inputs>
void panel_tile(const Weight& w, const Rounded& x, int64_t input, float* y, int64_t first, const uint8_t* panel,
                const float* scales) {
    using F = typename Isa::F;
    using I = typename Isa::I;
    constexpr int64_t vector = 4 * Isa::lanes;
    const int64_t padded = x.padded_blocks, block_bytes = w.block * bits / 8, half = w.row_bytes() * Isa::lanes;
    const int8_t* numbers = x.numbers + input * x.stride;
    const float* x_scales = x.scales + input * padded;
    const int32_t* offsets = x.offsets + input * padded;
    F sums[inputs];
    for (auto& sum : sums) sum = Isa::zero();
    for (int64_t b = 0; b < w.blocks(); ++b) {
        I products[inputs];
        for (int m = 0; m < inputs; ++m) products[m] = Isa::integers(offsets[m * padded + b]);
        for (int64_t i = b * block_bytes; i < (b + 1) * block_bytes; i += 4) {
            const uint8_t* p = panel + i / 4 * vector;
            I low = Isa::bytes(p);
            for (int m = 0; m < inputs; ++m) {
                int32_t four;
                __builtin_memcpy(&four, numbers + m * x.stride + i, 4);
                if constexpr (bits == 4) {
                    products[m] = Isa::dot4(products[m], low, Isa::integers(four));
                } else {
                    products[m] = Isa::dot8(products[m], low, Isa::integers(four));
                }
            }
            if constexpr (bits == 4) {
                I high = Isa::bytes(p + half);
                for (int m = 0; m < inputs; ++m) {
                    int32_t four;
                    __builtin_memcpy(&four, numbers + m * x.stride + x.stride / 2 + i, 4);
                    products[m] = Isa::dot4(products[m], high, Isa::integers(four));
                }
            }
        }
        F scale = Isa::load(scales + b * Isa::lanes);
        for (int m = 0; m < inputs; ++m) {
            sums[m] = Isa::fma(Isa::mul(Isa::to_float(products[m]), scale), Isa::all(x_scales[m * padded + b]), sums[m]);
        }
    }
    int64_t left = w.rows - first;
    for (int m = 0; m < inputs; ++m) {
        float* out = y + (input + m) * w.rows + first;
        if (left >= Isa::lanes) {
            Isa::store(out, sums[m]);
        } else {
            Isa::store_part(out, sums[m], left);
        }
    }
}

template <class Isa, int bits>
void panel_inputs(const Weight& w, const Rounded& x, int64_t count, float* y, int64_t first, const uint8_t* panel,
                  const float* scales) {
    constexpr int most = Isa::rounded_tile;
    int64_t m = 0;
    for (; m + most <= count; m += most) panel_tile<Isa, bits, most>(w, x, m, y, first, panel, scales);
    for (; m + 4 <= count; m += 4) panel_tile<Isa, bits, 4>(w, x, m, y, first, panel, scales);
    for (; m < count; ++m) panel_tile<Isa, bits, 1>(w, x, m, y, first, panel, scales);
}

template <class Isa>
void rounded_panels(const Weight& w, const Rounded& x, int64_t count, float* y, int64_t first, int64_t last,
                    uint8_t* scratch) {
    uint8_t* panel = scratch;
    float* scales = reinterpret_cast<float*>(panel + pad(w.columns, 16) * Isa::lanes);
    float* row_scales = scales + w.blocks() * Isa::lanes;
    for (int64_t n = first; n < last; n += Isa::lanes) {
        pack_panel<Isa>(w, n, panel, scales, row_scales);
        if (w.type == int4) {
            panel_inputs<Isa, 4>(w, x, count, y, n, panel, scales);
        } else {
            panel_inputs<Isa, 8>(w, x, count, y, n, panel, scales);
        }
    }
}

}  // namespace
}  // namespace linear
