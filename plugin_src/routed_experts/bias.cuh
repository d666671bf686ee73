// Biases of experts.
#pragma once

#include "common/element.cuh"
#include "common/integers.cuh"

// Element `index` of a bias; 0 without one.
template <typename T>
__device__ __forceinline__ float bias_at(const void* bias, int64_t index) {
    return bias == nullptr ? 0.0f : to_float(static_cast<const T*>(bias)[index]);
}
