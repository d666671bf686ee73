// Neighbouring vectors of columns, of which the last may be partial.
#pragma once

#include <cstdint>

namespace cpu {
namespace {

// `vectors` vectors; all are full if `whole`, else the last one has `last` numbers.
template <class Isa, int vectors, bool whole>
struct VectorColumns {
    using F = typename Isa::F;
    int64_t last;

    __attribute__((always_inline)) F load(const float* p, int i) const {
        return whole || i + 1 < vectors ? Isa::load(p + i * Isa::lanes) : Isa::load_part(p + i * Isa::lanes, last);
    }
    __attribute__((always_inline)) void store(float* p, int i, F value) const {
        if (whole || i + 1 < vectors) {
            Isa::store(p + i * Isa::lanes, value);
        } else {
            Isa::store_part(p + i * Isa::lanes, value, last);
        }
    }
};

}  // namespace
}  // namespace cpu
