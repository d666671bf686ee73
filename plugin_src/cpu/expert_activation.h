// The activation of experts for one instruction set: the compiler vectorises its loops.
#pragma once

#include "experts.h"
#include "silu.h"

namespace cpu {
namespace {

inline float activated(const Activate& a, float z) {
    switch (a.kind) {
        case silu_activation: return a.alpha == 0.0f ? 0.5f * z : silu(a.alpha * z) / a.alpha;
        case relu_activation: return z < 0.0f ? 0.0f : z;
        default: return z < 0.0f ? 0.0f : z * z;
    }
}

// NaN stays NaN.
inline float at_most(float z, float limit) { return z > limit ? limit : z; }

template <class Isa>
void activate(const Activate& a, const float* u, float* out) {
    if (!a.gated) {
        for (int64_t i = 0; i < a.size; ++i) out[i] = activated(a, u[i]);
        return;
    }
    const float* v = u + a.size;
    for (int64_t i = 0; i < a.size; ++i) {
        const float clipped = v[i] < -a.limit ? -a.limit : at_most(v[i], a.limit);
        out[i] = activated(a, at_most(u[i], a.limit)) * (clipped + a.offset);
    }
}

}  // namespace
}  // namespace cpu
