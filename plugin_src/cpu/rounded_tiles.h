// Products of a weight in tiles with rounded inputs. Each lane computes one row of a tile, so that no sums over
// lanes are needed. The weight is read in the order of its memory, at the speed of a plain read: with the scales in a
// place of their own it took 2.7 times as long.
#pragma once

#include "rounded_inputs.h"
#include "widen.h"

namespace cpu {
namespace {

// What all tiles of a weight share.
struct Tiles {
    int64_t bytes, rows, columns, blocks, block_words, group_blocks, at_once;
    Type scale_type;
    const int8_t* zeros;

    Tiles(const Weight& w)
        : bytes(w.tile_bytes()), rows(w.rows), columns(w.columns), blocks(w.blocks()),
          block_words(w.block * bits_of(w.type) / 32), group_blocks(w.group / w.block),
          at_once(w.groups_at_once()), scale_type(w.scale_type), zeros(w.zeros) {}
};

// words: words of a row whose products with 8-bit inputs are added before they are widened.
// y[input + m][0:parts * lanes] of `inputs` inputs and of the rows of a tile from `lane` on; `left` rows exist.
// row_scales: of these rows, or null. zeros: of the tile, or null.
template <class Isa, Type type, int words, int inputs, int parts>
void tile_outputs(const Tiles& t, const uint8_t* tile, int64_t lane, const Rounded& x, int64_t input, float* y,
                  int64_t left, const float* row_scales, const int8_t* zeros) {
    using F = typename Isa::F;
    using I = typename Isa::I;
    constexpr int bits = bits_of(type);
    const int64_t blocks = t.blocks;
    const uint8_t* numbers = tile + 4 * lane;
    const uint8_t* span = tile;
    int64_t group = 0;
    const int8_t* given = x.numbers + input * t.columns;
    const float* x_scales = x.scales + input * blocks;
    const int32_t *offsets = x.offsets + input * blocks, *totals = x.totals + input * blocks;
    F sums[inputs][parts], scales[parts], zero[parts];
    for (auto& row : sums) {
        for (auto& sum : row) sum = Isa::zero();
    }
    for (int64_t b = 0, end = 0; b < blocks; ++b) {
        if (b == end) {
            if (group % t.at_once == 0) span = numbers - 4 * lane, numbers += span_scales;
            for (int p = 0; p < parts; ++p) {
                scales[p] =
                    span_scales_at<Isa>(span, t.scale_type, group % t.at_once * tile_rows + lane + p * Isa::lanes);
            }
            for (int p = 0; zeros && p < parts; ++p) {
                zero[p] = Isa::mul(Isa::load_int8(zeros + group * tile_rows + lane + p * Isa::lanes), scales[p]);
            }
            end += t.group_blocks, ++group;
        }
        I products[inputs][parts];
        for (int m = 0; m < inputs; ++m) {
            for (auto& product : products[m]) product = Isa::integers(offsets[b * inputs + m]);
        }
        for (int64_t i = 0; i < t.block_words; i += words) {
            I narrow[inputs][parts];
            for (int m = 0; m < inputs; ++m) {
                for (int p = 0; p < parts; ++p) narrow[m][p] = Isa::begin4(products[m][p]);
            }
#pragma GCC unroll 4
            for (int j = 0; j < words; ++j, numbers += 4 * tile_rows) {
                I low[parts], high[parts];
                for (int p = 0; p < parts; ++p) {
                    I raw = Isa::bytes(numbers + 4 * Isa::lanes * p);
                    low[p] = bits == 4 ? Isa::low_halves(raw) : Isa::weights8(raw);
                    high[p] = bits == 4 ? Isa::high_halves(raw) : low[p];
                    if (type == e2m1) low[p] = Isa::e2m1_numbers(low[p]), high[p] = Isa::e2m1_numbers(high[p]);
                }
                for (int m = 0; m < inputs; ++m, given += 32 / bits) {
                    // Two loads of 4 bytes: one of 8 would be spread to all lanes from a general register.
                    I even = Isa::all_bytes(given), odd = bits == 4 ? Isa::all_bytes(given + 4) : even;
                    for (int p = 0; p < parts; ++p) {
                        if constexpr (bits == 4) {
                            narrow[m][p] = Isa::add4(Isa::add4(narrow[m][p], low[p], even), high[p], odd);
                        } else {
                            products[m][p] = Isa::dot8(products[m][p], low[p], even);
                        }
                    }
                }
            }
            if constexpr (bits == 4) {
                for (int m = 0; m < inputs; ++m) {
                    for (int p = 0; p < parts; ++p) products[m][p] = Isa::end4(products[m][p], narrow[m][p]);
                }
            }
        }
        for (int m = 0; m < inputs; ++m) {
            F x_scale = Isa::all(x_scales[b * inputs + m]);
            for (int p = 0; p < parts; ++p) {
                F product = Isa::mul(Isa::to_float(products[m][p]), scales[p]);
                if (type != e2m1 && zeros) {
                    product = Isa::fma(zero[p], Isa::all(-static_cast<float>(totals[b * inputs + m])), product);
                }
                sums[m][p] = Isa::fma(product, x_scale, sums[m][p]);
            }
        }
    }
    for (int p = 0; row_scales && p < parts; ++p) {
        const int64_t exist = left - p * Isa::lanes;
        if (exist <= 0) break;
        const float* from = row_scales + p * Isa::lanes;
        const F scale = exist < Isa::lanes ? Isa::load_part(from, exist) : Isa::load(from);
        for (int m = 0; m < inputs; ++m) sums[m][p] = Isa::mul(sums[m][p], scale);
    }
    for (int m = 0; m < inputs; ++m) {
        for (int p = 0; p < parts; ++p) {
            store_lanes<Isa>(y + (input + m) * t.rows + p * Isa::lanes, sums[m][p], left - p * Isa::lanes);
        }
    }
}

template <class Isa, Type type, int words, int inputs, int parts>
int64_t tile_inputs(const Tiles& t, const uint8_t* tile, const Rounded& x, int64_t m, int64_t last, float* y,
                    int64_t left, const float* row_scales, const int8_t* zeros) {
    for (; m + inputs <= last; m += inputs) {
        for (int64_t lane = 0; lane < tile_rows; lane += parts * Isa::lanes) {
            tile_outputs<Isa, type, words, inputs, parts>(t, tile, lane, x, m, y + lane, left - lane,
                                                          row_scales ? row_scales + lane : nullptr, zeros);
        }
    }
    return m;
}

template <class Isa, Type type, int words>
void rounded_rows(const Weight& w, const Rounded& x, float* y, int64_t first, int64_t last) {
    // Inputs of one pass: they stay in the L2 cache.
    constexpr int64_t cache_bytes = 1 << 18, most = Isa::rounded_tile;
    const Tiles t(w);
    const int64_t pass = cache_bytes / w.columns / most * most + most;
    for (int64_t start = 0; start < x.count; start += pass) {
        const int64_t end = start + pass < x.count ? start + pass : x.count;
        for (int64_t row = first; row < last; row += tile_rows) {
            const uint8_t* tile = w.data + row / tile_rows * t.bytes;
            float* out = y + row;
            const int64_t left = w.rows - row;
            const float* scales = w.scales ? w.scales + row : nullptr;
            const int8_t* zeros = t.zeros ? t.zeros + row * w.groups() : nullptr;
            int64_t m = tile_inputs<Isa, type, words, most, 1>(t, tile, x, start, end, out, left, scales, zeros);
            m = tile_inputs<Isa, type, words, 4, 1>(t, tile, x, m, end, out, left, scales, zeros);
            m = tile_inputs<Isa, type, words, 2, 1>(t, tile, x, m, end, out, left, scales, zeros);
            tile_inputs<Isa, type, words, 1, tile_rows / Isa::lanes>(t, tile, x, m, end, out, left, scales, zeros);
        }
    }
}

template <class Isa>
void rounded(const Weight& w, const Rounded& x, float* y, int64_t first, int64_t last) {
    if (w.type == int8) return rounded_rows<Isa, int8, 4>(w, x, y, first, last);
    if (w.type == e2m1) return rounded_rows<Isa, e2m1, 2>(w, x, y, first, last);
    if (w.block == 16) return rounded_rows<Isa, int4, 2>(w, x, y, first, last);
    rounded_rows<Isa, int4, 4>(w, x, y, first, last);
}

}  // namespace
}  // namespace cpu
