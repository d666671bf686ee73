// The kernels of one instruction set `Isa`.
#pragma once

#include "float_products.h"
#include "rounded_dots.h"
#include "rounded_panels.h"

namespace linear {
namespace {

template <class Isa>
int64_t scratch_bytes(const Weight& w) {
    int64_t columns = pad(w.columns, 16), blocks = pad(w.columns / 16 + 1, 16);
    int64_t dots = 4 * 17 * blocks, rounded = Isa::lanes * (columns + 4 * blocks) + 4 * blocks;
    int64_t floats = 4 * Isa::lanes * (columns + panel_columns) + 4 * blocks;
    bool is_float = w.type != int4 && w.type != int8;
    int64_t most = dots > rounded ? dots : rounded;
    return pad((is_float || floats > most ? floats : most) + 256, 64);
}

template <class Isa>
constexpr Kernels kernels_of(int64_t panel_inputs) {
    return {Isa::lanes,           panel_inputs,        scratch_bytes<Isa>, round_row<Isa>,
            rounded_dots<Isa>,    rounded_panels<Isa>, dots<Isa>,          panels<Isa>};
}

}  // namespace
}  // namespace linear
