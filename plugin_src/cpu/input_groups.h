// Groups of inputs that kernels read together: first as many of the largest size as there are, then smaller ones.
#pragma once

#include <cstdint>

namespace cpu {
namespace {

// First input and size of a group.
struct Group {
    int64_t first, size;
};

// The group of input m of `count`.
template <int largest>
Group group_of(int64_t m, int64_t count) {
    int64_t first = 0;
    for (int64_t size : {largest, 4, 2, 1}) {
        const int64_t end = first + (count - first) / size * size;
        if (m < end) return {first + (m - first) / size * size, size};
        first = end;
    }
    return {m, 1};
}

}  // namespace
}  // namespace cpu
