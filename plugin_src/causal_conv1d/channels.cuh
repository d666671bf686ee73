// Neighbouring channels of one thread: runs of elements, and the columns of the convolution state.
#pragma once

#include "common/element.cuh"
#include "common/math.cuh"

// N consecutive elements in registers, moved by the widest accesses that divide their size (at most 16 bytes). The
// address has that alignment: N-element runs at multiples of N from a 16-byte aligned base do.
template <typename T, int N>
struct Run {
    static constexpr int BYTES = N * sizeof(T);
    static constexpr int LOWEST_BIT = BYTES & -BYTES;
    static constexpr int WIDTH = (LOWEST_BIT > 16 ? 16 : LOWEST_BIT) / sizeof(T);
    T data[N];

    __device__ __forceinline__ void load(const T* from) {
#pragma unroll
        for (int i = 0; i < N; i += WIDTH) {
            const Vector<T, WIDTH> part = *reinterpret_cast<const Vector<T, WIDTH>*>(from + i);
#pragma unroll
            for (int j = 0; j < WIDTH; j++) data[i + j] = part.data[j];
        }
    }

    __device__ __forceinline__ void store(T* to) const {
#pragma unroll
        for (int i = 0; i < N; i += WIDTH) {
            Vector<T, WIDTH> part;
#pragma unroll
            for (int j = 0; j < WIDTH; j++) part.data[j] = data[i + j];
            *reinterpret_cast<Vector<T, WIDTH>*>(to + i) = part;
        }
    }
};

// The state of C channels, [C][K], oldest column first: the column of `newest` enters and the oldest one leaves.
template <typename T, int C, int K>
__device__ __forceinline__ void push_column(Run<T, C * K>& state, const Run<T, C>& newest) {
#pragma unroll
    for (int c = 0; c < C; c++) {
#pragma unroll
        for (int j = 0; j + 1 < K; j++) state.data[c * K + j] = state.data[c * K + j + 1];
        state.data[c * K + K - 1] = newest.data[c];
    }
}

// The output of C channels from their state and filter, [C][K]; zeros where the row has no valid token.
template <typename T, int C, int K, bool ACTIVATE>
__device__ __forceinline__ Run<T, C> filter_columns(const Run<T, C * K>& state, const Run<T, C * K>& weight,
                                                    const Run<T, C>& bias, bool has_bias, bool valid = true) {
    Run<T, C> y;
#pragma unroll
    for (int c = 0; c < C; c++) {
        float sum = has_bias ? to_float(bias.data[c]) : 0.0f;
#pragma unroll
        for (int j = 0; j < K; j++) sum = fmaf(to_float(weight.data[c * K + j]), to_float(state.data[c * K + j]), sum);
        y.data[c] = from_float<T>(valid ? (ACTIVATE ? silu(sum) : sum) : 0.0f);
    }
    return y;
}
