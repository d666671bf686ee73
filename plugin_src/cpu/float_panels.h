// Products in float32 of many inputs with a weight of any type, which is widened panel by panel.
#pragma once

#include "input_groups.h"
#include "widen.h"

namespace cpu {
namespace {

// Columns of a panel: its numbers and those of a group of inputs stay in the first two caches.
constexpr int64_t panel_columns = 256;

// Rows of a panel.
template <class Isa>
constexpr int64_t panel_rows = Isa::panel_vectors * Isa::lanes;

// x [columns], which is input m of `count`, in the order in which `panels` reads them: by panel_columns columns, then
// by group, [columns, size of the group] each. Rows of x far apart would contend for the same places of the cache.
template <class Isa>
void pack(const float* x, int64_t columns, int64_t m, int64_t count, float* out) {
    const Group group = group_of<Isa::tile>(m, count);
    for (int64_t start = 0; start < columns; start += panel_columns) {
        const int64_t part = columns - start < panel_columns ? columns - start : panel_columns;
        float* to = out + start * count + group.first * part + m - group.first;
        for (int64_t k = 0; k < part; ++k) to[k * group.size] = x[start + k];
    }
}

// y[input][row] of a panel [columns, panel_rows] with `count` columns and of x [columns, inputs]; added to y if `adds`.
// `left` rows exist.
template <class Isa, int inputs>
void panel_tile(const float* panel, int64_t count, const float* x, float* y, int64_t y_stride, int64_t left,
                bool adds) {
    using F = typename Isa::F;
    constexpr int vectors = Isa::panel_vectors;
    F sums[inputs][vectors];
    for (auto& row : sums) {
        for (auto& sum : row) sum = Isa::zero();
    }
    for (int64_t k = 0; k < count; ++k, panel += panel_rows<Isa>, x += inputs) {
        F numbers[vectors];
        for (int v = 0; v < vectors; ++v) numbers[v] = Isa::load(panel + v * Isa::lanes);
        for (int m = 0; m < inputs; ++m) {
            const F value = Isa::all(x[m]);
            for (int v = 0; v < vectors; ++v) sums[m][v] = Isa::fma(numbers[v], value, sums[m][v]);
        }
    }
    for (int v = 0; v < vectors && left > 0; ++v, y += Isa::lanes, left -= Isa::lanes) {
        for (int m = 0; m < inputs; ++m) {
            float* out = y + m * y_stride;
            F sum = sums[m][v];
            // Partial sums are accumulated separately: one sum over all columns would have a larger rounding error.
            if (adds) sum = Isa::fma(sum, Isa::all(1), left >= Isa::lanes ? Isa::load(out) : Isa::load_part(out, left));
            store_lanes<Isa>(out, sum, left);
        }
    }
}

// Columns start to start + count of the rows from `row` on: [count, panel_rows]. Rows that do not exist have any
// content.
template <class Isa>
void fill_panel(const Weight& w, int64_t row, int64_t start, int64_t count, float* panel) {
    constexpr int lanes = Isa::lanes;
    for (int v = 0; v < Isa::panel_vectors && row < w.rows; ++v, row += lanes, panel += lanes) {
        if (w.is_tiled()) {
            widen_tile<Isa>(w, row, start, count, panel, panel_rows<Isa>);
            continue;
        }
        alignas(64) float wide[lanes][panel_columns];
        for (int r = 0; r < lanes; ++r) {
            widen_row<Isa>(w, row + r < w.rows ? row + r : w.rows - 1, start, count, wide[r]);
        }
        for (int64_t k = 0; k < count; k += lanes) {
            typename Isa::F block[lanes];
            for (int r = 0; r < lanes; ++r) block[r] = Isa::load(wide[r] + k);
            Isa::transpose(block);
            for (int64_t i = 0; i < lanes && k + i < count; ++i)
                Isa::store(panel + (k + i) * panel_rows<Isa>, block[i]);
        }
    }
}

template <class Isa>
void panels(const Weight& w, const float* x, int64_t count, float* y, int64_t first, int64_t last) {
    alignas(64) float panel[panel_columns * panel_rows<Isa>];
    for (int64_t start = 0; start < w.columns; start += panel_columns) {
        const int64_t part = w.columns - start < panel_columns ? w.columns - start : panel_columns;
        for (int64_t n = first; n < last; n += panel_rows<Isa>) {
            fill_panel<Isa>(w, n, start, part, panel);
            int64_t m = 0;
            auto run = [&](auto tile, int size) __attribute__((always_inline)) {
                for (; m + size <= count; m += size) {
                    tile(panel, part, x + start * count + m * part, y + m * w.rows + n, w.rows, last - n, start > 0);
                }
            };
            run(panel_tile<Isa, Isa::tile>, Isa::tile);
            run(panel_tile<Isa, 4>, 4);
            run(panel_tile<Isa, 2>, 2);
            run(panel_tile<Isa, 1>, 1);
        }
    }
}

}  // namespace
}  // namespace cpu
