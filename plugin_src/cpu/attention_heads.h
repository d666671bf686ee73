// Attention for one instruction set: blocks of keys in turn, with running largest scores and sums of each query.
#pragma once

#include "attention.h"
#include "silu.h"

namespace cpu {
namespace {

// x [size] with its first 2 * angles numbers rotated, in halves, times scale.
inline void rotated(const Attention& a, const float* x, int64_t token, float scale, float* out) {
    const int64_t half = a.cos ? a.angles : 0;
    const float *cos = a.cos + token * half, *sin = a.sin + token * half;
    for (int64_t i = 0; i < half; ++i) {
        out[i] = (x[i] * cos[i] - x[half + i] * sin[i]) * scale;
        out[half + i] = (x[half + i] * cos[i] + x[i] * sin[i]) * scale;
    }
    for (int64_t i = 2 * half; i < a.size; ++i) out[i] = x[i] * scale;
}

// Key heads first to last, counted over all rows: the new keys and values in the caches.
template <class Isa>
void store_keys(const Attention& a, int64_t first, int64_t last) {
    for (int64_t head = first; head < last; ++head) {
        const int64_t row = head / a.kv_heads, start = a.start(row), base = head * a.capacity * a.size;
        if (a.keys != a.past_keys) {
            __builtin_memcpy(a.keys + base, a.past_keys + base, static_cast<size_t>(4 * start * a.size));
        }
        if (a.values && a.values != a.past_values) {
            __builtin_memcpy(a.values + base, a.past_values + base, static_cast<size_t>(4 * start * a.size));
        }
        for (int64_t t = 0; t < a.time; ++t) {
            const int64_t token = row * a.time + t, from = (token * a.kv_heads + head % a.kv_heads) * a.size;
            const int64_t to = base + (start + t) * a.size;
            rotated(a, a.key + from, token, 1.0f, a.keys + to);
            if (a.values) __builtin_memcpy(a.values + to, a.value + from, static_cast<size_t>(4 * a.size));
        }
    }
}

// y[m][0:vectors * lanes] = x[m][0:count] times a matrix [count, ...], whose rows are `stride` apart; added to y if
// `adds`.
template <class Isa, int inputs, int vectors>
void product_tile(const float* x, int64_t x_stride, const float* matrix, int64_t stride, int64_t count, float* y,
                  int64_t y_stride, bool adds) {
    typename Isa::F sums[inputs][vectors];
    for (int m = 0; m < inputs; ++m) {
        for (int v = 0; v < vectors; ++v)
            sums[m][v] = adds ? Isa::load(y + m * y_stride + v * Isa::lanes) : Isa::zero();
    }
    for (int64_t k = 0; k < count; ++k) {
        typename Isa::F numbers[vectors];
        for (int v = 0; v < vectors; ++v) numbers[v] = Isa::load(matrix + k * stride + v * Isa::lanes);
        for (int m = 0; m < inputs; ++m) {
            const auto value = Isa::all(x[m * x_stride + k]);
            for (int v = 0; v < vectors; ++v) sums[m][v] = Isa::fma(numbers[v], value, sums[m][v]);
        }
    }
    for (int m = 0; m < inputs; ++m) {
        for (int v = 0; v < vectors; ++v) Isa::store(y + m * y_stride + v * Isa::lanes, sums[m][v]);
    }
}

// The same for `queries` rows of x and `width` columns of y, a multiple of the lanes.
template <class Isa>
void small_product(const float* x, int64_t x_stride, int64_t queries, const float* matrix, int64_t stride,
                   int64_t count, float* y, int64_t y_stride, int64_t width, bool adds) {
    constexpr int64_t lanes = Isa::lanes;
    constexpr int tile = Isa::tile, vectors = Isa::panel_vectors;
    for (int64_t m = 0; m < queries;) {
        const int size = queries - m >= tile ? tile : queries - m >= 4 ? 4 : 1;
        const float* from = x + m * x_stride;
        float* to = y + m * y_stride;
        int64_t n = 0;
        auto run = [&](auto wide, auto narrow) __attribute__((always_inline)) {
            for (; n + vectors * lanes <= width; n += vectors * lanes) {
                wide(from, x_stride, matrix + n, stride, count, to + n, y_stride, adds);
            }
            for (; n < width; n += lanes) narrow(from, x_stride, matrix + n, stride, count, to + n, y_stride, adds);
        };
        if (size == tile) {
            run(product_tile<Isa, tile, vectors>, product_tile<Isa, tile, 1>);
        } else if (size == 4) {
            run(product_tile<Isa, 4, vectors>, product_tile<Isa, 4, 1>);
        } else {
            run(product_tile<Isa, 1, vectors>, product_tile<Isa, 1, 1>);
        }
        m += size;
    }
}

// Scores [queries, block] of `count` keys [count, size] and queries [queries, size].
template <class Isa>
void scores_of(const Attention& a, const float* queries, int64_t query_count, const float* keys, int64_t count,
               float* columns, float* scores) {
    constexpr int64_t lanes = Isa::lanes, block = Attention::block;
    if (query_count < Isa::tile) {
        for (int64_t m = 0; m < query_count; ++m) {
            for (int64_t k = 0; k < count; ++k) {
                auto sum = Isa::zero();
                for (int64_t i = 0; i < a.size; i += lanes) {
                    sum = Isa::fma(Isa::load(queries + m * a.size + i), Isa::load(keys + k * a.size + i), sum);
                }
                scores[m * block + k] = Isa::sum(sum);
            }
        }
        return;
    }
    const int64_t width = pad(count, lanes);
    for (int64_t k = 0; k < width; k += lanes) {
        for (int64_t i = 0; i < a.size; i += lanes) {
            typename Isa::F part[lanes];
            for (int64_t r = 0; r < lanes; ++r) {
                part[r] = k + r < count ? Isa::load(keys + (k + r) * a.size + i) : Isa::zero();
            }
            Isa::transpose(part);
            for (int64_t r = 0; r < lanes; ++r) Isa::store(columns + (i + r) * block + k, part[r]);
        }
    }
    small_product<Isa>(queries, a.size, query_count, columns, block, a.size, scores, block, width, false);
}

// One task: new tokens of one row, and all heads that share keys. A later task may have an earlier part of the prompt.
template <class Isa>
void attend(const Attention& a, int64_t task, uint8_t* memory) {
    constexpr int64_t block = Attention::block;
    const int64_t most = a.task_time(), parts = (a.time + most - 1) / most, head = task % (a.rows * a.kv_heads);
    // Tasks with the most keys come first.
    const int64_t first = (parts - 1 - task / (a.rows * a.kv_heads)) * most;
    const int64_t tokens = a.time - first < most ? a.time - first : most, shared = a.shared(), count = tokens * shared;
    const int64_t row = head / a.kv_heads, start = a.start(row) + first, end = start + tokens;
    float* queries = reinterpret_cast<float*>(memory);
    float *results = queries + count * a.size, *scores = results + count * a.size, *columns = scores + count * block;
    float *highest = columns + block * a.size, *sums = highest + count;
    const int64_t place = (row * a.time + first) * a.heads + head % a.kv_heads * shared;
    for (int64_t m = 0; m < count; ++m) {
        const int64_t from = (place + m / shared * a.heads + m % shared) * a.size;
        rotated(a, a.query + from, row * a.time + first + m / shared, a.scale, queries + m * a.size);
        highest[m] = -__builtin_inff(), sums[m] = 0.0f;
    }
    __builtin_memset(results, 0, static_cast<size_t>(4 * count * a.size));
    const float* keys = a.keys + head * a.capacity * a.size;
    const float* values = a.values ? a.values + head * a.capacity * a.size : keys;
    const int64_t lowest = a.window && start + 1 > a.window ? start + 1 - a.window : 0;
    for (int64_t at = lowest; at < end; at += block) {
        const int64_t found = end - at < block ? end - at : block;
        scores_of<Isa>(a, queries, count, keys + at * a.size, found, columns, scores);
        for (int64_t m = 0; m < count; ++m) {
            // The keys of this block that the query attends to.
            const int64_t own = start + m / shared, past = own + 1 - at, last = past < found ? past : found;
            const int64_t begin = a.window && own + 1 - a.window > at ? own + 1 - a.window - at : 0;
            float* score = scores + m * block;
            const int64_t width = pad(found, Isa::lanes);
            if (last <= begin) {
                for (int64_t k = 0; k < width; ++k) score[k] = 0.0f;
                continue;
            }
            for (int64_t k = 0; k < begin; ++k) score[k] = -__builtin_inff();
            for (int64_t k = last; k < width; ++k) score[k] = -__builtin_inff();
            auto largest = Isa::all(highest[m]);
            for (int64_t k = 0; k < width; k += Isa::lanes) largest = Isa::max(Isa::load(score + k), largest);
            const float high = Isa::highest(largest);
            for (int64_t k = 0; k < width; ++k) score[k] = exp_of_negative(score[k] - high);
            auto sum = Isa::zero();
            for (int64_t k = 0; k < width; k += Isa::lanes) sum = Isa::fma(Isa::load(score + k), Isa::all(1.0f), sum);
            if (high > highest[m]) {
                const float factor = exp_of_negative(highest[m] - high);
                for (int64_t i = 0; i < a.size; ++i) results[m * a.size + i] *= factor;
                sums[m] *= factor, highest[m] = high;
            }
            sums[m] += Isa::sum(sum);
        }
        small_product<Isa>(scores, block, count, values + at * a.size, a.size, found, results, a.size, a.size, true);
    }
    for (int64_t m = 0; m < count; ++m) {
        const float inverse = 1.0f / sums[m];
        float* y = a.y + (place + m / shared * a.heads + m % shared) * a.size;
        for (int64_t i = 0; i < a.size; ++i) y[i] = results[m * a.size + i] * inverse;
    }
}

}  // namespace
}  // namespace cpu
