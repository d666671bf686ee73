// Several tokens of the state update as products with one state, which is read once for all of them.
#pragma once

#include <algorithm>
#include <cmath>

#include "ssm.h"
#include "vector_columns.h"

namespace cpu {
namespace {

// Vectors of head_dim at once, and most tokens of a chunk: with a new state, whose inputs take registers too, and
// without.
constexpr int chunk_vectors = 2;
constexpr int64_t chunk_updates = 4, chunk_reads = 8;

inline float time_step(const SsmUpdate& u, float value) {
    // As x + log(1 + exp(-x)) where x is positive: exp does not overflow.
    if (u.softplus) value = std::max(value, 0.0f) + std::log1p(std::exp(-std::fabs(value)));
    // NaN stays NaN.
    return value < u.lowest ? u.lowest : value > u.highest ? u.highest : value;
}

// `count` tokens of one head. x, B, C and y are those of the first, whose neighbours are their strides on.
// steps: d. decay[t]: of the state before the chunk until token t. y[t] gets weights[t][j] d[j] x[j]. after[j]: from
// token j until the last one. As products of decays these are exact where a decay is 0.
struct SsmChunk {
    const float *x, *B, *C;
    float *y, D;
    int64_t count, x_stride, b_stride, y_stride, state_size, stride;
    float steps[chunk_reads], decay[chunk_reads], after[chunk_reads], weights[chunk_reads][chunk_reads];
};

template <class Isa>
float dot(const float* a, const float* b, int64_t count) {
    typename Isa::F sum = Isa::zero();
    for (int64_t i = 0; i < count; i += Isa::lanes) {
        const int64_t left = count - i;
        sum = left >= Isa::lanes ? Isa::fma(Isa::load(a + i), Isa::load(b + i), sum)
                                 : Isa::fma(Isa::load_part(a + i, left), Isa::load_part(b + i, left), sum);
    }
    return Isa::sum(sum);
}

// `count` tokens, from number `token` of all rows on.
template <class Isa>
SsmChunk ssm_chunk(const SsmUpdate& u, int64_t token, int64_t head, int64_t count) {
    const int64_t x_stride = u.x_stride, b_stride = u.b_stride, y_stride = u.heads * u.head_dim;
    const int64_t x_at = token * x_stride + head * u.head_dim, y_at = token * y_stride + head * u.head_dim;
    const int64_t b_at = token * b_stride + head / (u.heads / u.groups) * u.state_size;
    SsmChunk c{u.x + x_at, u.B + b_at, u.C + b_at, u.y + y_at, u.D[head], count,
               x_stride, b_stride, y_stride, u.state_size, u.head_dim, {}, {}, {}, {}};
    for (int64_t t = 0; t < count; ++t) {
        const float step = time_step(u, u.dt[(token + t) * u.dt_stride + head] + u.dt_bias[head]);
        const float decay = std::exp(u.A[head] * step);
        c.decay[t] = t > 0 ? c.decay[t - 1] * decay : decay;
        for (int64_t j = 0; j < t; ++j) c.after[j] *= decay;
        c.steps[t] = step, c.after[t] = 1.0f;
        for (int64_t j = 0; j <= t; ++j) {
            c.weights[t][j] = c.after[j] * dot<Isa>(c.C + t * b_stride, c.B + j * b_stride, u.state_size);
        }
    }
    return c;
}

// `vectors` vectors of columns of the head's state, of `count` tokens. All are full if `whole`, else the last one has
// `last` numbers. updates: the state after the last token is written to `state`.
template <class Isa, int vectors, bool whole, int count, bool updates>
void chunk_columns(const SsmChunk& c, const float* past, float* state, int64_t column, int64_t last) {
    using F = typename Isa::F;
    const VectorColumns<Isa, vectors, whole> columns{last};
    past += column, state += column;
    F read[count][vectors], given[count][vectors], written[count][vectors];
#pragma GCC unroll 8
    for (int t = 0; t < count; ++t) {
        for (int i = 0; i < vectors; ++i) {
            read[t][i] = Isa::zero();
            given[t][i] = Isa::mul(columns.load(c.x + t * c.x_stride + column, i), Isa::all(c.steps[t]));
            if (updates) written[t][i] = Isa::mul(given[t][i], Isa::all(c.after[t]));
        }
    }
    constexpr int64_t line = 64 / sizeof(float), ahead = 1024;
    const F decays = Isa::all(c.decay[count - 1]);
    for (int64_t n = 0; n < c.state_size; ++n, past += c.stride, state += c.stride) {
        F value[vectors];
        // The first columns fetch whole rows, in the order of memory.
        for (int64_t i = 0; column == 0 && i < c.stride; i += line) __builtin_prefetch(past + ahead + i);
        for (int i = 0; i < vectors; ++i) value[i] = columns.load(past, i);
#pragma GCC unroll 8
        for (int t = 0; t < count; ++t) {
            const F query = Isa::all(c.C[t * c.b_stride + n]);
            for (int i = 0; i < vectors; ++i) read[t][i] = Isa::fma(query, value[i], read[t][i]);
        }
        if (!updates) continue;
        for (int i = 0; i < vectors; ++i) value[i] = Isa::mul(decays, value[i]);
#pragma GCC unroll 8
        for (int t = 0; t < count; ++t) {
            const F key = Isa::all(c.B[t * c.b_stride + n]);
            for (int i = 0; i < vectors; ++i) value[i] = Isa::fma(key, written[t][i], value[i]);
        }
        for (int i = 0; i < vectors; ++i) columns.store(state, i, value[i]);
    }
    // Loops without constant bounds would keep `read` in memory.
#pragma GCC unroll 8
    for (int t = 0; t < count; ++t) {
        for (int i = 0; i < vectors; ++i) {
            F sum = Isa::mul(Isa::all(c.decay[t]), read[t][i]);
#pragma GCC unroll 8
            for (int j = 0; j < count; ++j) {
                if (j <= t) sum = Isa::fma(Isa::all(c.weights[t][j]), given[j][i], sum);
            }
            sum = Isa::fma(Isa::all(c.D), columns.load(c.x + t * c.x_stride + column, i), sum);
            columns.store(c.y + t * c.y_stride + column, i, sum);
        }
    }
}

template <class Isa, int count, bool updates>
void run_chunk(const SsmChunk& c, const float* past, float* state) {
    if constexpr (count > 1) {
        if (c.count < count) return run_chunk<Isa, count - 1, updates>(c, past, state);
    }
    constexpr int64_t together = chunk_vectors * Isa::lanes;
    int64_t p = 0;
    for (; p + together <= c.stride; p += together) {
        chunk_columns<Isa, chunk_vectors, true, count, updates>(c, past, state, p, Isa::lanes);
    }
    for (; p < c.stride; p += Isa::lanes) {
        chunk_columns<Isa, 1, false, count, updates>(c, past, state, p, std::min<int64_t>(Isa::lanes, c.stride - p));
    }
}

}  // namespace
}  // namespace cpu
