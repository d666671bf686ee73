// Products in float32 with a weight of any type, which is widened in registers or panel by panel.
#pragma once

#include "widen.h"

namespace cpu {
namespace {

// Columns of a panel per pass: its rows as float32 stay in the L1 cache.
constexpr int64_t panel_columns = 256;

// The next 2 * lanes numbers; bfloat16 as those at even, then those at odd places, which takes one instruction each.
template <class Isa, int type>
void load_two(const uint8_t* p, typename Isa::F (&out)[2]) {
    if constexpr (type == float32) {
        out[0] = Isa::load(reinterpret_cast<const float*>(p));
        out[1] = Isa::load(reinterpret_cast<const float*>(p) + Isa::lanes);
    } else if constexpr (type == bfloat16) {
        auto raw = Isa::bytes(p);
        out[0] = Isa::even_bfloats(raw), out[1] = Isa::odd_bfloats(raw);
    } else {
        out[0] = Isa::load16(p, false), out[1] = Isa::load16(p + 2 * Isa::lanes, false);
    }
}

template <class Isa>
void arrange(const Weight& w, const float* x, float* out) {
    const int64_t two = 2 * Isa::lanes, end = pad(w.columns, dot_columns);
    for (int64_t k = 0; k < end; k += two) {
        for (int64_t i = 0; i < two; ++i) {
            int64_t from = k + (w.type == bfloat16 ? 2 * (i % Isa::lanes) + i / Isa::lanes : i);
            out[k + i] = from < w.columns ? x[from] : 0.0f;
        }
    }
}

// y[input] of one row at p; inputs are `stride` apart.
template <class Isa, int type, int inputs>
void float_row(const uint8_t* p, int64_t columns, const float* x, int64_t stride, float* y, int64_t y_stride) {
    using F = typename Isa::F;
    constexpr int64_t two = 2 * Isa::lanes, two_bytes = two * bits_of(type) / 8;
    // Independent partial sums, which hide the latency of additions.
    constexpr int chains = inputs == 1 ? 4 : 2;
    F sums[chains][inputs];
    for (auto& chain : sums) {
        for (auto& sum : chain) sum = Isa::zero();
    }
    auto add = [&](int chain, const uint8_t* at, int64_t k) __attribute__((always_inline)) {
        F numbers[2];
        load_two<Isa, type>(at, numbers);
        for (int m = 0; m < inputs; ++m) {
            for (int half = 0; half < 2; ++half) {
                F& sum = sums[chain + half][m];
                sum = Isa::fma(numbers[half], Isa::load(x + m * stride + k + half * Isa::lanes), sum);
            }
        }
    };
    int64_t k = 0;
    for (; k + chains * Isa::lanes <= columns; k += chains * Isa::lanes) {
        for (int c = 0; c < chains; c += 2) add(c, p + (k + c * Isa::lanes) * bits_of(type) / 8, k + c * Isa::lanes);
    }
    for (; k < columns; k += two) {
        const uint8_t* at = p + k * bits_of(type) / 8;
        uint8_t last[two_bytes] = {};
        if (k + two > columns) {
            __builtin_memcpy(last, at, static_cast<size_t>((columns - k) * bits_of(type) / 8));
            at = last;
        }
        add(0, at, k);
    }
    for (int m = 0; m < inputs; ++m) {
        F sum = sums[0][m];
        for (int c = 1; c < chains; ++c) sum = Isa::fma(sums[c][m], Isa::all(1), sum);
        y[m * y_stride] = Isa::sum(sum);
    }
}

template <class Isa, int type>
void float_rows(const Weight& w, const float* x, int64_t count, float* y, int64_t first, int64_t last) {
    const int64_t stride = pad(w.columns, dot_columns);
    for (int64_t n = first; n < last; ++n) {
        const uint8_t* p = w.data + n * w.row_bytes();
        int64_t m = 0;
        for (; m + 4 <= count; m += 4) {
            float_row<Isa, type, 4>(p, w.columns, x + m * stride, stride, y + m * w.rows + n, w.rows);
        }
        for (; m < count; ++m) float_row<Isa, type, 1>(p, w.columns, x + m * stride, stride, y + m * w.rows + n, w.rows);
    }
}

// y[input] of one row of e4m3 numbers at p, each group of which has a scale.
template <class Isa, int inputs>
void scaled_row(const uint8_t* p, const float* scales, int64_t columns, int64_t group, float unit, const float* x,
                int64_t stride, float* y, int64_t y_stride) {
    using F = typename Isa::F;
    constexpr int64_t two = 2 * Isa::lanes;
    constexpr int chains = inputs == 1 ? 4 : 2;
    F totals[inputs];
    for (auto& total : totals) total = Isa::zero();
    for (int64_t start = 0; start < columns; start += group, p += group, x += group) {
        F sums[chains][inputs];
        for (auto& chain : sums) {
            for (auto& sum : chain) sum = Isa::zero();
        }
        int64_t k = 0;
        for (; k + chains * Isa::lanes <= group; k += chains * Isa::lanes) {
            for (int c = 0; c < chains; c += 2) {
                F numbers[2];
                const int64_t at = k + c * Isa::lanes;
                Isa::load_e4m3(p + at, numbers);
                for (int m = 0; m < inputs; ++m) {
                    for (int half = 0; half < 2; ++half) {
                        F& sum = sums[c + half][m];
                        sum = Isa::fma(numbers[half], Isa::load(x + m * stride + at + half * Isa::lanes), sum);
                    }
                }
            }
        }
        for (; k < group; k += two) {
            F numbers[2];
            group - k >= two ? Isa::load_e4m3(p + k, numbers) : load_e4m3_part<Isa>(p + k, group - k, numbers);
            for (int half = 0; half < 2; ++half) {
                const int64_t at = k + half * Isa::lanes, left = group - at;
                for (int m = 0; left > 0 && m < inputs; ++m) {
                    const float* from = x + m * stride + at;
                    F& sum = sums[half][m];
                    sum = Isa::fma(numbers[half], left < Isa::lanes ? Isa::load_part(from, left) : Isa::load(from), sum);
                }
            }
        }
        const F scale = Isa::all(*scales++);
        for (int m = 0; m < inputs; ++m) {
            F sum = Isa::fma(sums[1][m], Isa::all(1), sums[0][m]);
            if (chains == 4) sum = Isa::fma(Isa::fma(sums[3][m], Isa::all(1), sums[2][m]), Isa::all(1), sum);
            totals[m] = Isa::fma(sum, scale, totals[m]);
        }
    }
    for (int m = 0; m < inputs; ++m) y[m * y_stride] = Isa::sum(totals[m]) * unit;
}

// As widen_e4m3_row, a NaN in a row makes all products with it NaN.
template <class Isa>
void scaled_rows(const Weight& w, const float* x, int64_t count, float* y, int64_t first, int64_t last) {
    const int64_t stride = pad(w.columns, dot_columns);
    for (int64_t n = first; n < last; ++n) {
        const uint8_t* p = w.data + n * w.row_bytes();
        const float* scales = w.scales + n * w.groups();
        const float unit = has_e4m3_nan(p, w.columns) ? __builtin_nanf("") : e4m3_unit;
        auto run = [&](auto row, int64_t m) __attribute__((always_inline)) {
            row(p, scales, w.columns, w.group, unit, x + m * stride, stride, y + m * w.rows + n, w.rows);
        };
        int64_t m = 0;
        for (; m + 4 <= count; m += 4) run(scaled_row<Isa, 4>, m);
        for (; m < count; ++m) run(scaled_row<Isa, 1>, m);
    }
}

template <class Isa>
void dots(const Weight& w, const float* x, int64_t count, float* y, int64_t first, int64_t last) {
    switch (w.type) {
        case float16: return float_rows<Isa, float16>(w, x, count, y, first, last);
        case bfloat16: return float_rows<Isa, bfloat16>(w, x, count, y, first, last);
        case e4m3: return scaled_rows<Isa>(w, x, count, y, first, last);
        default: return float_rows<Isa, float32>(w, x, count, y, first, last);
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
        store_lanes<Isa>(out, sums[m], left);
    }
}

// Columns start to start + count of Isa::lanes rows of floats [.., stride], of which column 0 is at `rows`.
template <class Isa>
void transpose_rows(const float* rows, int64_t stride, int64_t start, int64_t count, float* panel) {
    int32_t starts[Isa::lanes];
    for (int r = 0; r < Isa::lanes; ++r) starts[r] = static_cast<int32_t>(4 * r * stride);
    auto where = Isa::load_integers(starts);
    for (int64_t k = 0; k < count; ++k) {
        auto column = Isa::gather(reinterpret_cast<const uint8_t*>(rows + start + k), where);
        __builtin_memcpy(panel + k * Isa::lanes, &column, sizeof column);
    }
}

template <class Isa>
int64_t scratch_bytes(const Weight& w) {
    return pad(4 * Isa::lanes * (pad(w.columns, 16) + panel_columns), 64);
}

template <class Isa>
void panels(const Weight& w, const float* x, int64_t count, float* y, int64_t first, int64_t last, uint8_t* scratch) {
    const int64_t columns = w.columns, stride = pad(columns, 16);
    float* rows = reinterpret_cast<float*>(scratch);
    float* panel = rows + Isa::lanes * stride;
    for (int64_t n = first; n < last; n += Isa::lanes) {
        const int64_t left = w.rows - n;
        for (int64_t r = 0; !w.is_tiled() && r < Isa::lanes; ++r) {
            widen_row<Isa>(w, n + (r < left ? r : left - 1), rows + r * stride);
        }
        for (int64_t start = 0; start < columns; start += panel_columns) {
            const int64_t part = columns - start < panel_columns ? columns - start : panel_columns;
            if (w.is_tiled()) {
                widen_tile<Isa>(w, n, start, part, panel);
            } else {
                transpose_rows<Isa>(rows, stride, start, part, panel);
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
}  // namespace cpu
