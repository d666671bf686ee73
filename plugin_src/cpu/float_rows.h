// Products in float32 of a few inputs with a weight that is not in tiles, which is widened in registers.
#pragma once

#include "widen.h"

namespace cpu {
namespace {

// How far ahead of its use a weight is fetched to the second cache.
constexpr int64_t prefetch_bytes = 1 << 15;

// The next 2 * lanes numbers; bfloat16 as those at even, then those at odd places, which takes one instruction each.
template <class Isa, int type>
void load_two(const uint8_t* p, typename Isa::F (&out)[2]) {
    if constexpr (type == float32) {
        out[0] = Isa::load(reinterpret_cast<const float*>(p));
        out[1] = Isa::load(reinterpret_cast<const float*>(p) + Isa::lanes);
    } else if constexpr (type == e4m3) {
        Isa::load_e4m3(p, out);
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

// y[input * w.rows + r] of `rows` rows from row n on; inputs are `stride` apart. units: of each row, for e4m3 numbers.
template <class Isa, int type, int rows, int inputs>
void row_products(const Weight& w, int64_t n, const float* units, const float* x, int64_t stride, float* y) {
    using F = typename Isa::F;
    constexpr int64_t two = 2 * Isa::lanes, two_bytes = two * bits_of(type) / 8;
    // Independent partial sums of each product: with fewer than 8 in all, they would wait for each other.
    constexpr int chains = rows * inputs >= 8 ? 1 : rows * inputs > 1 ? 2 : 4;
    constexpr int64_t step = chains == 4 ? 2 * two : two;
    const int64_t row_bytes = w.row_bytes();
    const uint8_t *p = w.data + n * row_bytes, *ahead = p + prefetch_bytes;
    F totals[rows][inputs];
    for (auto& row : totals) {
        for (auto& total : row) total = Isa::zero();
    }
    const int64_t group_bytes = w.group * bits_of(type) / 8;
    for (int64_t start = 0; start < w.columns;
         start += w.group, x += w.group, p += group_bytes, ahead += rows * group_bytes) {
        F sums[chains][rows][inputs];
        for (auto& chain : sums) {
            for (auto& row : chain) {
                for (auto& sum : row) sum = Isa::zero();
            }
        }
        // Adds 2 * lanes columns from k on, or only `left`, if these are fewer.
        auto add = [&](int64_t k, int chain, int64_t left) __attribute__((always_inline)) {
            F numbers[rows][2];
            for (int r = 0; r < rows; ++r) {
                const uint8_t* at = p + r * row_bytes + k * bits_of(type) / 8;
                // The processor does not foresee the memory of several rows at once: fetch it in its order.
                for (int64_t line = 0; rows > 1 && line < two_bytes; line += 64) {
                    __builtin_prefetch(ahead + k * bits_of(type) / 8 * rows + r * two_bytes + line, 0, 2);
                }
                uint8_t last[two_bytes];
                if (left < two) {
                    __builtin_memset(last, 0, sizeof last);
                    __builtin_memcpy(last, at, static_cast<size_t>(left * bits_of(type) / 8));
                    at = last;
                }
                load_two<Isa, type>(at, numbers[r]);
            }
            for (int half = 0; half < 2; ++half) {
                for (int m = 0; m < inputs; ++m) {
                    const float* from = x + m * stride + k + half * Isa::lanes;
                    F input;
                    if (type == e4m3 && left < two) {  // inputs of the next group follow
                        const int64_t rest = left - half * Isa::lanes;
                        input = Isa::load_part(from, rest < 0 ? 0 : rest < Isa::lanes ? rest : Isa::lanes);
                    } else {
                        input = Isa::load(from);
                    }
                    for (int r = 0; r < rows; ++r) {
                        F& sum = sums[(chain + half) % chains][r][m];
                        sum = Isa::fma(numbers[r][half], input, sum);
                    }
                }
            }
        };
        int64_t k = 0;
        for (; k + step <= w.group; k += step) {
            for (int c = 0; c < step / Isa::lanes; c += 2) add(k + c * Isa::lanes, c, two);
        }
        for (; k < w.group; k += two) add(k, 0, w.group - k < two ? w.group - k : two);
        for (int r = 0; r < rows; ++r) {
            const F scale = Isa::all(type == e4m3 ? w.scales[(n + r) * w.groups() + start / w.group] : 1);
            for (int m = 0; m < inputs; ++m) {
                F sum = sums[0][r][m];
                for (int c = 1; c < chains; ++c) sum = Isa::fma(sums[c][r][m], Isa::all(1), sum);
                totals[r][m] = type == e4m3 ? Isa::fma(sum, scale, totals[r][m]) : sum;
            }
        }
    }
    for (int r = 0; r < rows; ++r) {
        for (int m = 0; m < inputs; ++m) {
            const float sum = Isa::sum(totals[r][m]);
            y[m * w.rows + r] = type == e4m3 ? sum * units[r] : sum;
        }
    }
}

// The same of `size` inputs, from 1 to `most`.
template <class Isa, int type, int rows, int most>
void input_products(const Weight& w, int64_t n, const float* units, const float* x, int64_t stride, float* y,
                    int64_t size) {
    if constexpr (most > 1) {
        if (size < most) return input_products<Isa, type, rows, most - 1>(w, n, units, x, stride, y, size);
    }
    row_products<Isa, type, rows, most>(w, n, units, x, stride, y);
}

// All inputs with `rows` rows from row n on. As in widen_e4m3_row, a NaN in a row makes all products with it NaN.
template <class Isa, int type, int rows>
void products_of_rows(const Weight& w, int64_t n, const float* x, int64_t count, float* y) {
    const int64_t stride = pad(w.columns, dot_columns);
    float units[rows];
    for (int r = 0; type == e4m3 && r < rows; ++r) {
        units[r] = has_e4m3_nan(w.data + (n + r) * w.row_bytes(), w.columns) ? __builtin_nanf("") : e4m3_unit;
    }
    if (count == 1) {
        // Rows one after another, as memory has them.
        for (int r = 0; r < rows; ++r) row_products<Isa, type, 1, 1>(w, n + r, units + r, x, stride, y + n + r);
        return;
    }
    constexpr int64_t most = Isa::dot_inputs;
    for (int64_t m = 0, size; m < count; m += size) {
        const int64_t left = count - m;
        size = left <= most ? left : left < 2 * most ? (left + 1) / 2 : most;
        input_products<Isa, type, rows, most>(w, n, units, x + m * stride, stride, y + m * w.rows + n, size);
    }
}

template <class Isa, int type>
void products(const Weight& w, const float* x, int64_t count, float* y, int64_t first, int64_t last) {
    int64_t n = first;
    for (; n + Isa::dot_rows <= last; n += Isa::dot_rows) products_of_rows<Isa, type, Isa::dot_rows>(w, n, x, count, y);
    for (; n < last; ++n) products_of_rows<Isa, type, 1>(w, n, x, count, y);
}

template <class Isa>
void dots(const Weight& w, const float* x, int64_t count, float* y, int64_t first, int64_t last) {
    switch (w.type) {
        case float16: return products<Isa, float16>(w, x, count, y, first, last);
        case bfloat16: return products<Isa, bfloat16>(w, x, count, y, first, last);
        case e4m3: return products<Isa, e4m3>(w, x, count, y, first, last);
        default: return products<Isa, float32>(w, x, count, y, first, last);
    }
}

}  // namespace
}  // namespace cpu
