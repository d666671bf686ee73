// The state update in vectors of one instruction set.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ssm_chunk.h"
#include "state_8bit_matrices.h"
#include "vector_columns.h"

namespace cpu {
namespace {

// Vectors of head_dim at once: their sums stay in registers for a whole token.
constexpr int ssm_vectors = 4;

// `vectors` vectors of columns of one head's state. All are full if `whole`, else the last one has `last` numbers.
template <class Isa, int vectors, bool whole>
void ssm_columns(const SsmUpdate& u, const float* past, float* state, const float* x, const float* B, const float* C,
                 float* y, float decay, float step, float D, int64_t last) {
    using F = typename Isa::F;
    const int64_t stride = u.head_dim;
    const VectorColumns<Isa, vectors, whole> columns{last};
    F written[vectors], sums[vectors];
    const F decays = Isa::all(decay);
    for (int i = 0; i < vectors; ++i) {
        F value = columns.load(x, i);
        written[i] = Isa::mul(value, Isa::all(step));
        sums[i] = Isa::mul(value, Isa::all(D));
    }
    for (int64_t n = 0; n < u.state_size; ++n, past += stride, state += stride) {
        const F b = Isa::all(B[n]), c = Isa::all(C[n]);
        for (int i = 0; i < vectors; ++i) {
            F value = Isa::fma(b, written[i], Isa::mul(decays, columns.load(past, i)));
            columns.store(state, i, value);
            sums[i] = Isa::fma(c, value, sums[i]);
        }
    }
    for (int i = 0; i < vectors; ++i) columns.store(y, i, sums[i]);
}

template <class Isa>
void ssm_token(const SsmUpdate& u, const float* past, float* state, const float* x, const float* B, const float* C,
               float* y, float decay, float step, float D) {
    constexpr int64_t together = ssm_vectors * Isa::lanes;
    int64_t p = 0;
    for (; p + together <= u.head_dim; p += together) {
        ssm_columns<Isa, ssm_vectors, true>(u, past + p, state + p, x + p, B, C, y + p, decay, step, D, Isa::lanes);
    }
    for (; p < u.head_dim; p += Isa::lanes) {
        const int64_t left = std::min<int64_t>(Isa::lanes, u.head_dim - p);
        ssm_columns<Isa, 1, false>(u, past + p, state + p, x + p, B, C, y + p, decay, step, D, left);
    }
}

// Valid tokens of the row of head `number`, counted over all rows: head h of row r is number r * heads + h.
inline int64_t ssm_tokens(const SsmUpdate& u, int64_t number) {
    return u.tokens.count(number / u.heads);
}

// y of head `number`, and its state after the valid tokens; `past` and `state` may be the same memory. Without tokens
// `state` is not written. state: null where nothing reads it.
template <class Isa>
void ssm_head(const SsmUpdate& u, int64_t number, const float* past, float* state) {
    const int64_t row = number / u.heads, head = number % u.heads, group = head / (u.heads / u.groups);
    const int64_t length = ssm_tokens(u, number), size = u.head_dim * u.state_size;
    std::vector<float> unread;
    if (!state && length > chunk_reads) unread.resize(static_cast<size_t>(size)), state = unread.data();
    int64_t next = 0;
    for (int64_t t = 0, count = 0; t < length; t += count, past = state) {
        const int64_t token = u.tokens.first(row) + t;
        if (!state) {
            count = length;
            run_chunk<Isa, chunk_reads, false>(ssm_chunk<Isa>(u, token, head, count), past, nullptr);
            continue;
        }
        count = std::min({chunk_updates, length - t, u.checkpoints.tokens_until(next, t)});
        if (count == 1) {
            const int64_t projection = token * u.b_stride + group * u.state_size;
            const float step = time_step(u, u.dt[token * u.dt_stride + head] + u.dt_bias[head]);
            ssm_token<Isa>(u, past, state, u.x + token * u.x_stride + head * u.head_dim, u.B + projection,
                           u.C + projection, u.y + (token * u.heads + head) * u.head_dim, std::exp(u.A[head] * step),
                           step, u.D[head]);
        } else {
            run_chunk<Isa, chunk_updates, true>(ssm_chunk<Isa>(u, token, head, count), past, state);
        }
        if (u.checkpoints.is_after(next, t + count)) {
            std::copy(state, state + size, u.checkpoints.states + (next++ * u.heads + head) * size);
        }
    }
    for (int64_t t = length; t < u.tokens.padded(row); ++t) {
        float* y = u.y + ((u.tokens.first(row) + t) * u.heads + head) * u.head_dim;
        std::fill(y, y + u.head_dim, 0.0f);
    }
}

template <class Isa>
void ssm_heads(const SsmUpdate& u, int64_t first, int64_t last) {
    const int64_t size = u.head_dim * u.state_size;
    for (int64_t number = first; number < last; ++number) {
        const float* past = u.state + number * size;
        float* state = u.new_state ? u.new_state + number * size : nullptr;
        ssm_head<Isa>(u, number, past, state);
        if (state && past != state && ssm_tokens(u, number) == 0) std::copy(past, past + size, state);
    }
}

// One token of `vectors` full vectors of columns of one head's state of 8 bits. The new numbers are in `wide`,
// [state_size][vectors * lanes], until the largest of each column is known.
template <class Isa, int vectors>
void ssm_columns_8bit(const SsmUpdate& u, const int8_t* past, const float* past_scales, int8_t* values, float* scales,
                      const float* x, const float* B, const float* C, float* y, float decay, float step, float D,
                      float* wide) {
    using F = typename Isa::F;
    constexpr int64_t count = vectors * Isa::lanes;
    const int64_t stride = u.head_dim, size = u.state_size;
    F factors[vectors], written[vectors], sums[vectors], largest[vectors];
    for (int i = 0; i < vectors; ++i) {
        const F value = Isa::load(x + i * Isa::lanes);
        factors[i] = Isa::mul(Isa::load(past_scales + i * Isa::lanes), Isa::all(decay));
        written[i] = Isa::mul(value, Isa::all(step));
        sums[i] = Isa::mul(value, Isa::all(D));
        largest[i] = Isa::zero();
    }
    for (int64_t n = 0; n < size; ++n) {
        const F b = Isa::all(B[n]), c = Isa::all(C[n]);
        for (int i = 0; i < vectors; ++i) {
            const F old = Isa::load_int8(past + n * stride + i * Isa::lanes);
            const F value = Isa::fma(b, written[i], Isa::mul(factors[i], old));
            Isa::store(wide + n * count + i * Isa::lanes, value);
            sums[i] = Isa::fma(c, value, sums[i]);
            largest[i] = Isa::larger_magnitude(largest[i], value);
        }
    }
    for (int i = 0; i < vectors; ++i) {
        Isa::store(y + i * Isa::lanes, sums[i]);
        round_strip<Isa>(size, largest[i], wide + i * Isa::lanes, count, values + i * Isa::lanes, stride,
                         scales + i * Isa::lanes);
    }
}

// One token of head `number`, whose head_dim is a multiple of the vectors' size.
template <class Isa>
void ssm_token_8bit(const SsmUpdate& u, int64_t number, const int8_t* past, const float* past_scales, int8_t* values,
                    float* scales, float* wide) {
    constexpr int64_t together = ssm_vectors * Isa::lanes;
    const int64_t row = number / u.heads, head = number % u.heads, group = head / (u.heads / u.groups);
    const float step = time_step(u, u.dt[row * u.dt_stride + head] + u.dt_bias[head]);
    const float decay = std::exp(u.A[head] * step);
    const int64_t projection = row * u.b_stride + group * u.state_size;
    const float *x = u.x + row * u.x_stride + head * u.head_dim, *B = u.B + projection, *C = u.C + projection;
    const float D = u.D[head];
    float* y = u.y + number * u.head_dim;
    int64_t p = 0;
    for (; p + together <= u.head_dim; p += together) {
        ssm_columns_8bit<Isa, ssm_vectors>(u, past + p, past_scales + p, values + p, scales + p, x + p, B, C, y + p,
                                           decay, step, D, wide);
    }
    for (; p < u.head_dim; p += Isa::lanes) {
        ssm_columns_8bit<Isa, 1>(u, past + p, past_scales + p, values + p, scales + p, x + p, B, C, y + p, decay, step,
                                 D, wide);
    }
}

// The same with states of 8 bits; a row without tokens keeps its numbers and scales.
template <class Isa>
void ssm_heads_8bit(const SsmUpdate& u, const SsmState8& s, int64_t first, int64_t last) {
    const int64_t size = u.head_dim * u.state_size;
    std::vector<float> wide(static_cast<size_t>(size));
    for (int64_t number = first; number < last; ++number) {
        const int8_t* values = s.values + number * size;
        const float* scales = s.scales + number * u.head_dim;
        int8_t* new_values = s.new_values + number * size;
        float* new_scales = s.new_scales + number * u.head_dim;
        const int64_t tokens = ssm_tokens(u, number);
        if (tokens == 1 && u.tokens.time == 1 && !u.tokens.starts && u.head_dim % Isa::lanes == 0) {
            ssm_token_8bit<Isa>(u, number, values, scales, new_values, new_scales, wide.data());
            continue;
        }
        if (tokens > 0) {
            widen_states<Isa>({const_cast<int8_t*>(values), const_cast<float*>(scales), wide.data(), u.state_size,
                               u.head_dim, true}, 0, 1);
            ssm_head<Isa>(u, number, wide.data(), wide.data());
            round_states<Isa>({new_values, new_scales, wide.data(), u.state_size, u.head_dim, true}, 0, 1);
            continue;
        }
        ssm_head<Isa>(u, number, nullptr, nullptr);
        if (values != new_values) std::copy(values, values + size, new_values);
        if (scales != new_scales) std::copy(scales, scales + u.head_dim, new_scales);
    }
}

}  // namespace
}  // namespace cpu
