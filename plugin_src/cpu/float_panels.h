// Products in float32 of many inputs with a weight of any type, which is widened panel by panel.
#pragma once

#include "widen.h"

namespace cpu {
namespace {

// Columns of each panel but the last one, which may have fewer: about equal parts of `columns`.
inline int64_t part_columns(int64_t columns) {
    const int64_t parts = (columns + panel_columns - 1) / panel_columns;
    return pad((columns + parts - 1) / parts, tile_rows);
}

// Rows of a panel.
template <class Isa>
constexpr int64_t panel_rows = Isa::panel_vectors * Isa::lanes;

// Most inputs at once: their sums with a panel's rows stay in the second cache.
template <class Isa>
constexpr int64_t most_inputs = pad(768, Isa::tile);

// x [columns], which is input m of `count`, as `panels` reads it: [parts of part_columns columns, count,
// packed_stride].
inline void pack(const float* x, int64_t columns, int64_t m, int64_t count, float* out) {
    const int64_t most = part_columns(columns);
    out += m * packed_stride;
    for (int64_t start = 0; start < columns; start += most, out += count * packed_stride) {
        const int64_t part = columns - start < most ? columns - start : most;
        __builtin_memcpy(out, x + start, static_cast<size_t>(4 * part));
    }
}

// Where a tile's sums go: sums [inputs, panel_rows], to which they are added if `adds`; and, if y is not null, from
// there to y [inputs, stride], of which `left` rows exist.
struct PanelSums {
    float *sums, *y;
    int64_t stride, left;
    bool adds;
};

// Of a panel [columns, panel_rows] with `count` columns and of x [inputs, packed_stride].
template <class Isa, int inputs>
void panel_tile(const float* panel, int64_t count, const float* x, PanelSums to) {
    using F = typename Isa::F;
    constexpr int vectors = Isa::panel_vectors;
    F sums[inputs][vectors];
#pragma GCC unroll 16
    for (auto& row : sums) {
        for (auto& sum : row) sum = Isa::zero();
    }
    for (int64_t k = 0; k < count; ++k, panel += panel_rows<Isa>) {
        F numbers[vectors];
        for (int v = 0; v < vectors; ++v) numbers[v] = Isa::load(panel + v * Isa::lanes);
#pragma GCC unroll 16
        for (int m = 0; m < inputs; ++m) {
            const F value = Isa::all(x[m * packed_stride + k]);
            for (int v = 0; v < vectors; ++v) sums[m][v] = Isa::fma(numbers[v], value, sums[m][v]);
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < inputs; ++m) {
        for (int v = 0; v < vectors; ++v) {
            float* kept = to.sums + m * panel_rows<Isa> + v * Isa::lanes;
            // Partial sums are accumulated separately: one sum over all columns would have a larger rounding error.
            const F sum = to.adds ? Isa::fma(sums[m][v], Isa::all(1), Isa::load(kept)) : sums[m][v];
            if (to.y) {
                store_lanes<Isa>(to.y + m * to.stride + v * Isa::lanes, sum, to.left - v * Isa::lanes);
            } else {
                Isa::store(kept, sum);
            }
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

// The numbers of a panel that is filled next, which are fetched row by row while another one is multiplied: the
// processor does not foresee the memory of many short rows.
struct NextPanel {
    const uint8_t* data;
    int64_t row_bytes, bytes, rows;

    // The columns from `start` on, at most `columns`, of the rows from `row` on, at most `rows`.
    NextPanel(const Weight& w, int64_t row, int64_t rows, int64_t start, int64_t columns)
        : data(w.data + row * w.row_bytes() + start * bits_of(w.type) / 8), row_bytes(w.row_bytes()),
          bytes((w.columns - start < columns ? w.columns - start : columns) * bits_of(w.type) / 8),
          rows(w.is_tiled() ? 0 : w.rows - row < rows ? w.rows - row : rows) {}

    void fetch(int64_t count) {
        for (; count > 0 && rows > 0; --count, --rows, data += row_bytes) {
            for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(data + at, 0, 2);
        }
    }
};

// y[first input:last input] of one panel's rows from n on.
template <class Isa>
void panel_products(const Weight& w, const float* x, int64_t count, int64_t begin, int64_t end, float* y, int64_t n,
                    int64_t left, float* panel, float* sums) {
    constexpr int64_t rows = panel_rows<Isa>;
    const int64_t most = part_columns(w.columns);
    for (int64_t start = 0; start < w.columns; start += most, x += count * packed_stride) {
        const bool is_last = start + most >= w.columns;
        const int64_t part = is_last ? w.columns - start : most;
        fill_panel<Isa>(w, n, start, part, panel);
        NextPanel next(w, is_last ? n + rows : n, rows, is_last ? 0 : start + most, most);
        const int64_t fetched = (rows * Isa::tile + end - begin - 1) / (end - begin);
        int64_t m = begin;
        auto run = [&](auto tile, int size) __attribute__((always_inline)) {
            for (; m + size <= end; m += size) {
                next.fetch(fetched);
                float* to = is_last ? y + m * w.rows + n : nullptr;
                tile(panel, part, x + m * packed_stride, {sums + (m - begin) * rows, to, w.rows, left, start > 0});
            }
        };
        run(panel_tile<Isa, Isa::tile>, Isa::tile);
        run(panel_tile<Isa, 4>, 4);
        run(panel_tile<Isa, 2>, 2);
        run(panel_tile<Isa, 1>, 1);
    }
}

template <class Isa>
void panels(const Weight& w, const float* x, int64_t count, float* y, int64_t first, int64_t last) {
    alignas(64) float panel[panel_columns * panel_rows<Isa>], sums[most_inputs<Isa> * panel_rows<Isa>];
    const int64_t blocks = (count + most_inputs<Isa> - 1) / most_inputs<Isa>;
    const int64_t size = pad((count + blocks - 1) / blocks, Isa::tile);
    for (int64_t begin = 0; begin < count; begin += size) {
        const int64_t end = count - begin < size ? count : begin + size;
        for (int64_t n = first; n < last; n += panel_rows<Isa>) {
            panel_products<Isa>(w, x, count, begin, end, y, n, last - n, panel, sums);
        }
    }
}

}  // namespace
}  // namespace cpu
