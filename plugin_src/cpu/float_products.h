// Products in float32 with a weight of any type, which is widened in registers or row by row.
#pragma once

#include "widen.h"

namespace linear {
namespace {

// Columns of a panel per pass: its rows as float32 stay in the L1 cache.
constexpr int64_t panel_columns = 256;

template <class Isa, int type>
typename Isa::F number_part(const uint8_t* p, int64_t i, int64_t left) {
    if constexpr (type == float32) {
        const float* at = reinterpret_cast<const float*>(p) + i;
        return left >= Isa::lanes ? Isa::load(at) : Isa::load_part(at, left);
    } else {
        return left >= Isa::lanes ? Isa::load16(p + 2 * i, type == bfloat16)
                                  : Isa::load16_part(p + 2 * i, type == bfloat16, left);
    }
}

// y[input] of one row at p.
template <class Isa, int type, int inputs>
void float_row(const uint8_t* p, int64_t columns, const float* x, float* y, int64_t y_stride) {
    using F = typename Isa::F;
    // Independent partial sums, which hide the latency of additions.
    constexpr int chains = inputs == 1 ? 4 : 2;
    F sums[chains][inputs];
    for (auto& chain : sums) {
        for (auto& sum : chain) sum = Isa::zero();
    }
    auto add = [&](F(&chain)[inputs], int64_t k, int64_t left) __attribute__((always_inline)) {
        F number = number_part<Isa, type>(p, k, left);
        for (int m = 0; m < inputs; ++m) {
            const float* at = x + m * columns + k;
            chain[m] = Isa::fma(number, left >= Isa::lanes ? Isa::load(at) : Isa::load_part(at, left), chain[m]);
        }
    };
    int64_t k = 0;
    for (; k + chains * Isa::lanes <= columns; k += chains * Isa::lanes) {
        for (int c = 0; c < chains; ++c) add(sums[c], k + c * Isa::lanes, Isa::lanes);
    }
    for (; k < columns; k += Isa::lanes) add(sums[0], k, columns - k);
    for (int m = 0; m < inputs; ++m) {
        F sum = sums[0][m];
        for (int c = 1; c < chains; ++c) sum = Isa::fma(sums[c][m], Isa::all(1), sum);
        y[m * y_stride] = Isa::sum(sum);
    }
}

template <class Isa, int type>
void float_inputs(const uint8_t* p, const Weight& w, const float* x, int64_t count, float* y) {
    int64_t m = 0, k = w.columns;
    for (; m + 4 <= count; m += 4) float_row<Isa, type, 4>(p, k, x + m * k, y + m * w.rows, w.rows);
    for (; m < count; ++m) float_row<Isa, type, 1>(p, k, x + m * k, y + m * w.rows, w.rows);
}

template <class Isa, int type>
void float_rows(const Weight& w, const float* x, int64_t count, float* y, int64_t first, int64_t last) {
    for (int64_t n = first; n < last; ++n) float_inputs<Isa, type>(w.numbers + n * w.row_bytes(), w, x, count, y + n);
}

template <class Isa>
void dots(const Weight& w, const float* x, int64_t count, float* y, int64_t first, int64_t last, uint8_t* scratch) {
    switch (w.type) {
        case float32: return float_rows<Isa, float32>(w, x, count, y, first, last);
        case float16: return float_rows<Isa, float16>(w, x, count, y, first, last);
        case bfloat16: return float_rows<Isa, bfloat16>(w, x, count, y, first, last);
        default: break;
    }
    float* row = reinterpret_cast<float*>(scratch);
    for (int64_t n = first; n < last; ++n) {
        widen_row<Isa>(w, n, row, row + pad(w.columns, 16));
        float_inputs<Isa, float32>(reinterpret_cast<const uint8_t*>(row), w, x, count, y + n);
    }
}

// y[input][lane] += the products of `count` columns of a panel [columns, lanes] and of x.
template <class Isa, int inputs>
void float_panel_tile(const float* panel, int64_t count, const float* x, int64_t x_stride, float* y, int64_t y_stride,
                      int64_t left, bool adds) {
    using F = typename Isa::F;
    F sums[inputs];
    for (auto& sum : sums) sum = Isa::zero();
    for (int64_t k = 0; k < count; ++k) {
        F numbers = Isa::load(panel + k * Isa::lanes);
        for (int m = 0; m < inputs; ++m) sums[m] = Isa::fma(numbers, Isa::all(x[m * x_stride + k]), sums[m]);
    }
    for (int m = 0; m < inputs; ++m) {
        float* out = y + m * y_stride;
        // Partial sums are accumulated separately: one sum over all columns would have a larger rounding error.
        if (adds) sums[m] = Isa::fma(sums[m], Isa::all(1), left >= Isa::lanes ? Isa::load(out) : Isa::load_part(out, left));
        if (left >= Isa::lanes) {
            Isa::store(out, sums[m]);
        } else {
            Isa::store_part(out, sums[m], left);
        }
    }
}

template <class Isa>
void panels(const Weight& w, const float* x, int64_t count, float* y, int64_t first, int64_t last, uint8_t* scratch) {
    const int64_t columns = w.columns, stride = pad(columns, 16);
    float* rows = reinterpret_cast<float*>(scratch);
    float* panel = rows + Isa::lanes * stride;
    int32_t starts[Isa::lanes];
    for (int r = 0; r < Isa::lanes; ++r) starts[r] = static_cast<int32_t>(4 * r * stride);
    auto where = Isa::load_integers(starts);
    for (int64_t n = first; n < last; n += Isa::lanes) {
        int64_t left = w.rows - n;
        for (int64_t r = 0; r < Isa::lanes; ++r) widen_row<Isa>(w, n + (r < left ? r : left - 1), rows + r * stride, panel);
        for (int64_t start = 0; start < columns; start += panel_columns) {
            int64_t part = columns - start < panel_columns ? columns - start : panel_columns;
            for (int64_t k = 0; k < part; ++k) {
                auto column = Isa::gather(reinterpret_cast<const uint8_t*>(rows + start + k), where);
                __builtin_memcpy(panel + k * Isa::lanes, &column, sizeof column);
            }
            constexpr int most = Isa::tile;
            int64_t m = 0;
            auto run = [&](auto tile, int size) __attribute__((always_inline)) {
                for (; m + size <= count; m += size) {
                    tile(panel, part, x + m * columns + start, columns, y + m * w.rows + n, w.rows, left, start > 0);
                }
            };
            run(float_panel_tile<Isa, most>, most);
            run(float_panel_tile<Isa, 4>, 4);
            run(float_panel_tile<Isa, 1>, 1);
        }
    }
}

}  // namespace
}  // namespace linear
