// The gated delta rule in vectors of one instruction set.
#pragma once

#include <algorithm>
#include <cmath>

#include "delta_rule.h"
#include "vector_columns.h"

namespace cpu {
namespace {

// Vectors of value_size at once, and tokens: these columns of a state stay in the first cache for these tokens.
constexpr int delta_vectors = 2;
constexpr int64_t delta_tokens = 8;
constexpr float delta_norm_epsilon = 1e-6f;

// What all columns of a head's state read of a few tokens, [tokens, key_size] each: q and k normed, q scaled; exp(g);
// and exp(g) k.
struct DeltaTokens {
    float q[delta_tokens * most_key_size], k[delta_tokens * most_key_size];
    float decay[delta_tokens * most_key_size], decayed_k[delta_tokens * most_key_size];
};

template <class Isa>
float squares(const float* x, int64_t count) {
    typename Isa::F sum = Isa::zero();
    for (int64_t i = 0; i < count; i += Isa::lanes) {
        const auto part = i + Isa::lanes <= count ? Isa::load(x + i) : Isa::load_part(x + i, count - i);
        sum = Isa::fma(part, part, sum);
    }
    return Isa::sum(sum);
}

// Token number `token` among those of all rows, as token t of `out`.
template <class Isa>
void read_token(const DeltaRule& d, int64_t token, int64_t head, int64_t t, DeltaTokens& out) {
    const int64_t key_head = head / (d.value_heads / d.key_heads), size = d.key_size, start = t * size;
    const float *q = d.q + (token * d.key_heads + key_head) * size, *k = d.k + (token * d.key_heads + key_head) * size;
    const float* g = d.g + (token * d.value_heads + head) * d.decay_size;
    const float q_factor = d.normed ? d.scale / std::sqrt(squares<Isa>(q, size) + delta_norm_epsilon) : d.scale;
    const float k_factor = d.normed ? 1.0f / std::sqrt(squares<Isa>(k, size) + delta_norm_epsilon) : 1.0f;
    float* decay = out.decay + start;
    if (d.decay_size == 1) {
        std::fill(decay, decay + size, std::exp(g[0]));
    } else {
        for (int64_t n = 0; n < size; ++n) decay[n] = std::exp(g[n]);
    }
    for (int64_t n = 0; n < size; ++n) {
        out.q[start + n] = q_factor * q[n];
        out.k[start + n] = k_factor * k[n];
        out.decayed_k[start + n] = decay[n] * out.k[start + n];
    }
}

// Fetch what `delta_heads` reads of token number `token`: heads lie too far apart for the processor to foresee it.
inline void fetch_token(const DeltaRule& d, int64_t token, int64_t head) {
    constexpr int64_t line = 64 / sizeof(float);
    const int64_t key_at = (token * d.key_heads + head / (d.value_heads / d.key_heads)) * d.key_size;
    const int64_t value_at = (token * d.value_heads + head) * d.value_size;
    for (int64_t n = 0; n < d.key_size; n += line)
        __builtin_prefetch(d.q + key_at + n), __builtin_prefetch(d.k + key_at + n);
    for (int64_t m = 0; m < d.value_size; m += line) __builtin_prefetch(d.v + value_at + m);
}

// `vectors` vectors of columns of one head's state, over `count` tokens, from v, beta and o of the first of them on.
// All vectors are full if `whole`, else the last one has `last` numbers.
template <class Isa, int vectors, bool whole>
void delta_columns(const DeltaRule& d, const DeltaTokens& tokens, int64_t count, const float* past, float* state,
                   const float* v, const float* beta, float* o, int64_t last) {
    using F = typename Isa::F;
    const int64_t stride = d.value_size, size = d.key_size;
    const VectorColumns<Isa, vectors, whole> columns{last};
    // What the token's decayed key reads of the state before it.
    F read[vectors];
    for (int i = 0; i < vectors; ++i) read[i] = Isa::zero();
    for (int64_t n = 0; n < size; ++n) {
        const F key = Isa::all(tokens.decayed_k[n]);
        for (int i = 0; i < vectors; ++i) read[i] = Isa::fma(key, columns.load(past + n * stride, i), read[i]);
    }
    for (int64_t t = 0; t < count; ++t, past = state) {
        const float *q = tokens.q + t * size, *k = tokens.k + t * size, *decay = tokens.decay + t * size;
        // The next token's read in the same pass; unused after the last token.
        const float* next = t + 1 < count ? tokens.decayed_k + (t + 1) * size : k;
        F written[vectors], sums[vectors];
        for (int i = 0; i < vectors; ++i) {
            const F difference = Isa::fma(Isa::all(-1.0f), read[i], columns.load(v + t * d.value_heads * stride, i));
            written[i] = Isa::mul(Isa::all(beta[t * d.value_heads]), difference);
            read[i] = sums[i] = Isa::zero();
        }
        for (int64_t n = 0; n < size; ++n) {
            const F decays = Isa::all(decay[n]), key = Isa::all(k[n]), query = Isa::all(q[n]);
            const F next_key = Isa::all(next[n]);
            for (int i = 0; i < vectors; ++i) {
                const F value = Isa::fma(key, written[i], Isa::mul(decays, columns.load(past + n * stride, i)));
                columns.store(state + n * stride, i, value);
                sums[i] = Isa::fma(query, value, sums[i]);
                read[i] = Isa::fma(next_key, value, read[i]);
            }
        }
        for (int i = 0; i < vectors; ++i) columns.store(o + t * d.value_heads * stride, i, sums[i]);
    }
}

// Value heads first to last, counted over all rows: head h of row r is number r * value_heads + h.
template <class Isa>
void delta_heads(const DeltaRule& d, int64_t first, int64_t last) {
    constexpr int64_t together = delta_vectors * Isa::lanes;
    const int64_t size = d.key_size * d.value_size;
    DeltaTokens tokens;
    for (int64_t number = first; number < last; ++number) {
        const int64_t row = number / d.value_heads, head = number % d.value_heads;
        const int64_t length = d.tokens.count(row), begin = d.tokens.first(row);
        float* state = d.new_state + number * size;
        const float* past = d.state + number * size;
        int64_t next = 0;
        for (int64_t t = 0, count = 0; t < length; t += count, past = state) {
            count = std::min({delta_tokens, length - t, d.checkpoints.tokens_until(next, t)});
            const int64_t token = begin + t;
            for (int64_t i = 0; i < count; ++i) read_token<Isa>(d, token + i, head, i, tokens);
            const int64_t soon = std::min(length - t, count + delta_tokens);
            for (int64_t i = count; i < soon; ++i) fetch_token(d, token + i, head);
            const int64_t at = token * d.value_heads + head;
            const float *v = d.v + at * d.value_size, *beta = d.beta + at;
            float* o = d.o + at * d.value_size;
            int64_t m = 0;
            for (; m + together <= d.value_size; m += together) {
                delta_columns<Isa, delta_vectors, true>(d, tokens, count, past + m, state + m, v + m, beta, o + m,
                                                        Isa::lanes);
            }
            for (; m < d.value_size; m += Isa::lanes) {
                const int64_t left = std::min<int64_t>(Isa::lanes, d.value_size - m);
                delta_columns<Isa, 1, false>(d, tokens, count, past + m, state + m, v + m, beta, o + m, left);
            }
            if (d.checkpoints.is_after(next, t + count)) {
                std::copy(state, state + size, d.checkpoints.states + (next++ * d.value_heads + head) * size);
            }
        }
        if (past != state) std::copy(past, past + size, state);
        for (int64_t t = length; t < d.tokens.padded(row); ++t) {
            float* o = d.o + ((begin + t) * d.value_heads + head) * d.value_size;
            std::fill(o, o + d.value_size, 0.0f);
        }
    }
}

}  // namespace
}  // namespace cpu
