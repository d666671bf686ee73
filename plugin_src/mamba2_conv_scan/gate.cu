// y = silu(gate) * y in place, for the calls that run as several kernels.
//
// Macros: DATA_T; ACCESS (elements of one access); THREADS. Grid: x covers the width, y the tokens, z the rows. Tokens
// past a row's length keep their zeros, whatever their gate is.
#include "common/access.cuh"
#include "common/launch.cuh"
#include "common/math.cuh"
#include "mamba2_conv_scan/params.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) mamba2_gate(const __grid_constant__ Gate params) {
    wait_for_earlier_kernels();
    let_later_kernels_start();
    const int column = (blockIdx.x * THREADS + threadIdx.x) * ACCESS;
    const RowView view = row_view(params.rows, blockIdx.z);
    if (view.slot < 0 || column >= params.width) return;
    const DATA_T* gates = static_cast<const DATA_T*>(params.gate) + view.row * params.gate_row +
                          view.first_token * params.gate_token + column;
    DATA_T* outputs =
        static_cast<DATA_T*>(params.y) + view.row * params.y_row + view.first_token * params.y_token + column;
    for (int token = blockIdx.y; token < view.length; token += gridDim.y) {
        Access<DATA_T, ACCESS> gate, y;
        gate.load(gates + token * params.gate_token);
        y.load(outputs + token * params.y_token);
        float factors[ACCESS], values[ACCESS];
        gate.unpack(factors);
        y.unpack(values);
#pragma unroll
        for (int i = 0; i < ACCESS; ++i) values[i] *= silu(factors[i]);
        y.pack(values);
        y.store(outputs + token * params.y_token);
    }
}
