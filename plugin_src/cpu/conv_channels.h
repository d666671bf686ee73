// The convolution for one instruction set: the compiler vectorises its loops over channels.
#pragma once

#include <algorithm>

#include "conv.h"
#include "silu.h"

namespace cpu {
namespace {

// At most conv_channels channels of one row, from `first` on.
template <class Isa>
void convolve(const Convolution& c, int64_t row, int64_t first) {
    const int64_t count = std::min(conv_channels, c.channels - first);
    const int64_t taps = c.taps, length = c.tokens.count(row), begin = c.tokens.first(row);
    const float* state = c.state + (row * c.channels + first) * taps;
    float* new_state = c.new_state + (row * c.channels + first) * taps;
    const float* weight = c.weight + first * taps;
    const float* x = c.x + begin * c.stride + first;
    float* y = c.y + begin * c.channels + first;
    // Taps and the old columns, one row of channels each.
    float weights[most_taps][conv_channels], columns[most_taps][conv_channels];
    for (int64_t i = 0; i < count; ++i) {
        for (int64_t j = 0; j < taps; ++j) weights[j][i] = weight[i * taps + j], columns[j][i] = state[i * taps + j];
    }
    // Column t; columns of negative t are the old ones.
    auto column = [&](int64_t t) { return t < 0 ? columns[taps + t] : x + t * c.stride; };
    for (int64_t t = 0; t < length; ++t) {
        float sums[conv_channels] = {};
        if (c.bias) std::copy(c.bias + first, c.bias + first + count, sums);
        for (int64_t j = 0; j < taps; ++j) {
            const float *values = column(t - taps + 1 + j), *factors = weights[j];
            for (int64_t i = 0; i < count; ++i) sums[i] += factors[i] * values[i];
        }
        float* out = y + t * c.channels;
        if (c.silu) {
            for (int64_t i = 0; i < conv_channels; ++i) sums[i] = silu(sums[i]);
        }
        std::copy(sums, sums + count, out);
    }
    for (int64_t t = length; t < c.tokens.padded(row); ++t)
        std::fill(y + t * c.channels, y + t * c.channels + count, 0.0f);
    // The columns before token `end`.
    auto write_state = [&](int64_t end, float* out) {
        for (int64_t j = 0; j < taps; ++j) {
            const float* values = column(end - taps + j);
            for (int64_t i = 0; i < count; ++i) out[i * taps + j] = values[i];
        }
    };
    for (int64_t n = 0; n < c.checkpoints.count; ++n) {
        write_state(c.checkpoints.lengths[n], c.checkpoints.states + (n * c.channels + first) * taps);
    }
    write_state(length, new_state);
}

}  // namespace
}  // namespace cpu
