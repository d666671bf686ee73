// Attention of one token for one instruction set: the scores of all keys, then the sum of their values.
#pragma once

#include <algorithm>
#include <cmath>

#include "silu.h"
#include "ssm_chunk.h"
#include "token_attention.h"

namespace cpu {
namespace {

// Store the key and value of one head.
inline void store_token(const TokenAttention& a, int64_t row, int64_t kv_head) {
    if (a.slots[row] < 0) return;
    const int64_t block = a.slots[row] / a.block_size, offset = a.slots[row] % a.block_size;
    for (int64_t part = 0; part < a.parts; ++part) {
        const float* from = (part ? a.value : a.key) + (row * a.kv_heads + kv_head) * a.head_dim;
        std::copy(from, from + a.head_dim, a.head(part, block, kv_head) + offset * a.head_dim);
    }
}

// out [width] += weights[k] * rows[k][0:width] for all of `count` rows, which follow each other.
template <class Isa>
void add_rows(const float* weights, const float* rows, int64_t count, int64_t width, float* out) {
    for (int64_t i = 0; i < width; i += Isa::lanes) {
        const int64_t left = width - i;
        if (left >= Isa::lanes) {
            auto sum = Isa::load(out + i);
            for (int64_t k = 0; k < count; ++k)
                sum = Isa::fma(Isa::all(weights[k]), Isa::load(rows + k * width + i), sum);
            Isa::store(out + i, sum);
        } else {
            auto sum = Isa::load_part(out + i, left);
            for (int64_t k = 0; k < count; ++k) {
                sum = Isa::fma(Isa::all(weights[k]), Isa::load_part(rows + k * width + i, left), sum);
            }
            Isa::store_part(out + i, sum, left);
        }
    }
}

// Calls run(keys, values, from, count) for the keys of each block that the row sees; `from` counts from the first of
// them.
template <class Run>
void each_block(const TokenAttention& a, int64_t row, int64_t kv_head, const Run& run) {
    const int64_t first = a.first(row);
    for (int64_t at = first; at < a.lengths[row];) {
        const int64_t offset = at % a.block_size, block = a.table[row * a.columns + at / a.block_size];
        const int64_t count = std::min<int64_t>(a.block_size - offset, a.lengths[row] - at);
        run(a.head(0, block, kv_head) + offset * a.head_dim, a.head(a.parts - 1, block, kv_head) + offset * a.head_dim,
            at - first, count);
        at += count;
    }
}

// One key head of one row, and all query heads that read it. `memory`: task_bytes.
template <class Isa>
void attend_token(const TokenAttention& a, int64_t task, float* memory) {
    const int64_t row = task / a.kv_heads, kv_head = task % a.kv_heads, shared = a.shared(), size = a.head_dim;
    store_token(a, row, kv_head);
    const int64_t from = (row * a.heads + kv_head * shared) * size, seen = a.lengths[row] - a.first(row);
    float* y = a.y + from;
    if (seen <= 0) {
        std::fill(y, y + shared * size, 0.0f);
        return;
    }
    const int64_t stride = pad(seen, 16);
    float* scores = memory;
    each_block(a, row, kv_head, [&](const float* keys, const float*, int64_t begin, int64_t count) {
        for (int64_t m = 0; m < shared; ++m) {
            const float* q = a.q + from + m * size;
            for (int64_t k = 0; k < count; ++k) {
                scores[m * stride + begin + k] = a.scale * dot<Isa>(q, keys + k * size, size);
            }
        }
    });
    std::fill(y, y + shared * size, 0.0f);
    for (int64_t m = 0; m < shared; ++m) {
        float* score = scores + m * stride;
        if (a.softcap != 0.0f) {
            for (int64_t k = 0; k < seen; ++k) score[k] = a.softcap * std::tanh(score[k] / a.softcap);
        }
        float most = a.sinks ? a.sinks[kv_head * shared + m] : score[0];
        for (int64_t k = 0; k < seen; ++k) most = score[k] > most ? score[k] : most;
        for (int64_t k = 0; k < seen; ++k) score[k] = exp_of_negative(score[k] - most);
        float sum = a.sinks ? std::exp(a.sinks[kv_head * shared + m] - most) : 0.0f;
        for (int64_t k = 0; k < seen; ++k) sum += score[k];
        const float share = 1.0f / sum;
        for (int64_t k = 0; k < seen; ++k) score[k] *= share;
    }
    each_block(a, row, kv_head, [&](const float*, const float* values, int64_t begin, int64_t count) {
        for (int64_t m = 0; m < shared; ++m) {
            add_rows<Isa>(scores + m * stride + begin, values, count, size, y + m * size);
        }
    });
}

}  // namespace
}  // namespace cpu
