// The kernels of one instruction set `Isa`.
#pragma once

#include "float_products.h"
#include "rounded_tiles.h"

namespace linear {
namespace {

template <class Isa>
constexpr Kernels kernels_of(int64_t panel_inputs) {
    return {panel_inputs, scratch_bytes<Isa>, round_row<Isa>, rounded<Isa>, arrange<Isa>, dots<Isa>, panels<Isa>};
}

}  // namespace
}  // namespace linear
