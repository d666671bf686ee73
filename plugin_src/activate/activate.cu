// In place after a matrix product: y = relu(y)^2, or y = silu(y) * up.
//
// Macros: DATA_T; GATED (silu(y) * up); VECTOR (elements of 16 bytes); ITEMS (accesses of a thread); THREADS. Grid: x
// covers the accesses.
#include "common/element.cuh"
#include "common/integers.cuh"
#include "common/launch.cuh"
#include "common/math.cuh"

struct Activate {
    void* y;            // [accesses * VECTOR]
    const void* up;     // the same, or null
    int64_t accesses;
};

extern "C" __global__ void __launch_bounds__(THREADS) activate(const __grid_constant__ Activate params) {
    using Access = Vector<DATA_T, VECTOR>;
    let_later_kernels_start();
    wait_for_earlier_kernels();
    Access* const outputs = static_cast<Access*>(params.y);
    const Access* const factors = static_cast<const Access*>(params.up);
    const int64_t first = int64_t(blockIdx.x) * (ITEMS * THREADS) + threadIdx.x;
    Access y[ITEMS], up[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int64_t place = first + item * THREADS;
        if (place >= params.accesses) continue;
        y[item] = outputs[place];
        if (GATED) up[item] = factors[place];
    }
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const int64_t place = first + item * THREADS;
        if (place >= params.accesses) continue;
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            const float value = to_float(y[item].data[i]);
            // A NaN stays one.
            const float activated = GATED ? silu(value) * to_float(up[item].data[i])
                                          : (value < 0.0f ? 0.0f : value * value);
            y[item].data[i] = from_float<DATA_T>(activated);
        }
        outputs[place] = y[item];
    }
}
