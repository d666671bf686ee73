// Attention in strips of queries, one query in each lane, so that keys and values are read where they are.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "memory.h"
#include "paged_attention.h"
#include "silu.h"

namespace cpu {
namespace {

// Keys at once: their scores stay in the first cache.
constexpr int64_t attention_keys = 64;

template <class Isa>
constexpr int64_t strip_queries = Isa::panel_vectors * Isa::lanes;

// out[i][query] of `rows` dot products of rows[i] [count] with the columns of `queries` [count, strip_queries].
template <class Isa, int rows>
void row_scores(const float* const* row, const float* queries, int64_t count, float* out) {
    typename Isa::F sums[rows][Isa::panel_vectors];
#pragma GCC unroll 16
    for (auto& sum : sums) {
        for (auto& part : sum) part = Isa::zero();
    }
    for (int64_t d = 0; d < count; ++d, queries += strip_queries<Isa>) {
        typename Isa::F query[Isa::panel_vectors];
        for (int v = 0; v < Isa::panel_vectors; ++v) query[v] = Isa::load(queries + v * Isa::lanes);
#pragma GCC unroll 16
        for (int i = 0; i < rows; ++i) {
            const auto number = Isa::all(row[i][d]);
            for (int v = 0; v < Isa::panel_vectors; ++v) sums[i][v] = Isa::fma(number, query[v], sums[i][v]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
        for (int v = 0; v < Isa::panel_vectors; ++v)
            Isa::store(out + i * strip_queries<Isa> + v * Isa::lanes, sums[i][v]);
    }
}

// Adds weights[k][query] * row[k][column + i] to out[i][query] for `columns` i and all of `count` k.
template <class Isa, int columns>
void add_values(const float* const* row, int64_t column, const float* weights, int64_t count, float* out) {
    typename Isa::F sums[columns][Isa::panel_vectors];
#pragma GCC unroll 16
    for (int i = 0; i < columns; ++i) {
        for (int v = 0; v < Isa::panel_vectors; ++v)
            sums[i][v] = Isa::load(out + i * strip_queries<Isa> + v * Isa::lanes);
    }
    for (int64_t k = 0; k < count; ++k, weights += strip_queries<Isa>) {
        typename Isa::F weight[Isa::panel_vectors];
        for (int v = 0; v < Isa::panel_vectors; ++v) weight[v] = Isa::load(weights + v * Isa::lanes);
        const float* numbers = row[k] + column;
#pragma GCC unroll 16
        for (int i = 0; i < columns; ++i) {
            const auto number = Isa::all(numbers[i]);
            for (int v = 0; v < Isa::panel_vectors; ++v) sums[i][v] = Isa::fma(number, weight[v], sums[i][v]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < columns; ++i) {
        for (int v = 0; v < Isa::panel_vectors; ++v)
            Isa::store(out + i * strip_queries<Isa> + v * Isa::lanes, sums[i][v]);
    }
}

// One strip of a key head's queries, in memory of a thread.
template <class Isa>
struct Strip {
    static constexpr int64_t width = strip_queries<Isa>;
    const PagedAttention& a;
    float *queries, *sums, *weights;  // [head_dim, width], [head_dim, width], [attention_keys, width]
    // Position of each query's token; largest score and sum of weights so far.
    int64_t positions[width];
    float largest[width], total[width];

    static int64_t floats(const PagedAttention& a) { return (2 * a.head_dim + attention_keys) * width; }

    Strip(const PagedAttention& attention, float* memory)
        : a(attention), queries(memory), sums(memory + a.head_dim * width), weights(sums + a.head_dim * width) {}

    // Query i as token and head; those behind the last one repeat it.
    int64_t query(int64_t kv_head, int64_t first, int64_t i) const {
        const int64_t ratio = a.heads / a.kv_heads, n = std::min(first + i, a.queries() - 1);
        return n / ratio * a.heads + kv_head * ratio + n % ratio;
    }

    void run(int64_t kv_head, int64_t first) {
        for (int64_t i = 0; i < width; ++i) {
            const int64_t at = query(kv_head, first, i);
            positions[i] = a.seen - a.tokens + at / a.heads;
            largest[i] = -FLT_MAX, total[i] = 0.0f;
            for (int64_t d = 0; d < a.head_dim; ++d) queries[d * width + i] = a.scale * a.q[at * a.head_dim + d];
        }
        std::fill(sums, sums + a.head_dim * width, 0.0f);
        const int64_t start = a.window ? std::max<int64_t>(positions[0] - a.window + 1, 0) : 0,
                      end = positions[width - 1] + 1;
        for (int64_t k = start; k < end; k += attention_keys) add_keys(kv_head, k, std::min(attention_keys, end - k));
        finish(kv_head, first);
    }

    void add_keys(int64_t kv_head, int64_t start, int64_t count) {
        const float *keys[attention_keys], *values[attention_keys];
        const int64_t* blocks = a.blocks + kv_head * a.row_blocks;
        for (int64_t k = 0; k < count; ++k) {
            const int64_t position = start + k;
            keys[k] = a.pool + (blocks[position / a.block_size] * a.block_size + position % a.block_size) * a.head_dim;
            values[k] = keys[k] + (a.parts - 1) * a.pool_rows * a.block_size * a.head_dim;
        }
        for (int64_t k = 0; k < count;) k += scores<Isa::tile>(keys + k, count - k, weights + k * width);
        if (a.softcap != 0.0f) {
            for (int64_t i = 0; i < count * width; ++i) weights[i] = a.softcap * std::tanh(weights[i] / a.softcap);
        }
        if (start + count - 1 > positions[0] || (a.window && start <= positions[width - 1] - a.window))
            hide(start, count);
        weigh(count);
        for (int64_t d = 0; d < a.head_dim;) d += products<Isa::tile>(values, d, count);
    }

    template <int most>
    int64_t scores(const float* const* keys, int64_t left, float* out) {
        if constexpr (most > 1) {
            if (left < most) return scores<most - 1>(keys, left, out);
        }
        row_scores<Isa, most>(keys, queries, a.head_dim, out);
        return most;
    }

    template <int most>
    int64_t products(const float* const* values, int64_t d, int64_t count) {
        if constexpr (most > 1) {
            if (a.head_dim - d < most) return products<most - 1>(values, d, count);
        }
        add_values<Isa, most>(values, d, weights, count, sums + d * width);
        return most;
    }

    // Scores of keys that a query does not see.
    void hide(int64_t start, int64_t count) {
        for (int64_t k = 0; k < count; ++k) {
            for (int64_t i = 0; i < width; ++i) {
                const bool is_hidden = start + k > positions[i] || (a.window && start + k <= positions[i] - a.window);
                if (is_hidden) weights[k * width + i] = -INFINITY;
            }
        }
    }

    // Scores to weights relative to the largest so far.
    void weigh(int64_t count) {
        float most[width], factor[width];
        std::copy(largest, largest + width, most);
        for (int64_t k = 0; k < count; ++k) {
            for (int64_t i = 0; i < width; ++i)
                most[i] = weights[k * width + i] > most[i] ? weights[k * width + i] : most[i];
        }
        for (int64_t i = 0; i < width; ++i) {
            factor[i] = exp_of_negative(largest[i] - most[i]);
            total[i] *= factor[i], largest[i] = most[i];
        }
        for (int64_t k = 0; k < count; ++k) {
            for (int64_t i = 0; i < width; ++i) {
                const float weight = exp_of_negative(weights[k * width + i] - most[i]);
                weights[k * width + i] = weight, total[i] += weight;
            }
        }
        for (int64_t d = 0; d < a.head_dim; ++d) {
            for (int64_t i = 0; i < width; ++i) sums[d * width + i] *= factor[i];
        }
    }

    void finish(int64_t kv_head, int64_t first) {
        for (int64_t i = 0; i < width && first + i < a.queries(); ++i) {
            const int64_t at = query(kv_head, first, i);
            float scale = 1.0f, sum = total[i];
            if (a.sinks) {
                const float sink = a.sinks[at % a.heads], most = std::max(sink, largest[i]);
                scale = std::exp(largest[i] - most), sum = sum * scale + std::exp(sink - most);
            }
            for (int64_t d = 0; d < a.head_dim; ++d) a.y[at * a.head_dim + d] = scale / sum * sums[d * width + i];
        }
    }
};

// The queries of key head `kv_head` from number `first` on, one strip. False where there is no memory.
template <class Isa>
bool attend_blocks(const PagedAttention& a, int64_t kv_head, int64_t first, Memory& memory) {
    auto* floats = reinterpret_cast<float*>(memory.bytes(Strip<Isa>::floats(a) * static_cast<int64_t>(sizeof(float))));
    if (!floats) return false;
    Strip<Isa>(a, floats).run(kv_head, first);
    return true;
}

}  // namespace
}  // namespace cpu
