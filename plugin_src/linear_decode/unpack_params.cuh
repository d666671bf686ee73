// The argument of unpack_tiles.
#pragma once

#include "common/integers.cuh"

// y[n][k] is the weight that tiles (tile.cuh) hold for output n and input k.
struct UnpackTiles {
    const void* tiles;
    const float* factors;  // [outputs]
    void* y;               // [outputs][inputs]; inputs are a multiple of 8
    int inputs;
    int outputs;
};
