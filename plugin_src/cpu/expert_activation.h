// The activation between two products for one instruction set: the compiler vectorises its loops.
#pragma once

#include "experts.h"
#include "gelu.h"
#include "silu.h"

namespace cpu {
namespace {

// NaN stays NaN.
inline float at_most(float z, float limit) { return z > limit ? limit : z; }

// f(g) * (v + offset) of `count` numbers each, with limits; v is null where not gated. Compilers vectorise loops
// without a choice of f in them.
template <class Function>
void activate_each(const Activate& a, const float* g, const float* v, int64_t count, float* out, Function f) {
    if (!v) {
        for (int64_t i = 0; i < count; ++i) out[i] = f(g[i]);
        return;
    }
    for (int64_t i = 0; i < count; ++i) {
        const float clipped = v[i] < -a.limit ? -a.limit : at_most(v[i], a.limit);
        out[i] = f(at_most(g[i], a.limit)) * (clipped + a.offset);
    }
}

template <class Isa>
void activate(const Activate& a, const float* g, const float* v, int64_t count, float* out) {
    auto each = [&](auto f) { activate_each(a, g, v, count, out, f); };
    const float alpha = a.alpha, inverse = 1.0f / alpha;
    switch (a.kind) {
        case relu_activation: return each([](float z) { return z < 0.0f ? 0.0f : z; });
        case relu2_activation: return each([](float z) { return z < 0.0f ? 0.0f : z * z; });
        case gelu_activation: return each([](float z) { return gelu(z); });
        case gelu_tanh_activation: return each([](float z) { return gelu_tanh(z); });
        case silu_activation: break;
    }
    if (alpha == 1.0f) return each([](float z) { return silu(z); });
    if (alpha == 0.0f) return each([](float z) { return 0.5f * z; });
    each([=](float z) { return silu(alpha * z) * inverse; });
}

}  // namespace
}  // namespace cpu
