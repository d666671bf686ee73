// y = silu(gate) * y, where the chunked kernels store y. For their macros DATA_T and GATE_ACCESS.
#pragma once

#include "common/access.cuh"
#include "common/integers.cuh"
#include "common/launch.cuh"
#include "common/math.cuh"

constexpr bool GATED = GATE_ACCESS > 0;

// Prefetches a chunk's gate, `valid` tokens of `columns` elements from `gate` on, by THREADS threads, of which this is
// `thread`. One address for 64 bytes.
template <int THREADS>
__device__ __forceinline__ void prefetch_gate(const DATA_T* gate, int64_t token_stride, int columns, int valid,
                                              int thread) {
    constexpr int ELEMENTS = 64 / sizeof(DATA_T);
    const int runs = (columns + ELEMENTS - 1) / ELEMENTS;
    for (int i = thread; i < valid * runs; i += THREADS)
        prefetch_to_l2(gate + i / runs * token_stride + i % runs * ELEMENTS);
}

// COLUMNS neighbouring elements of the gate; nothing without one.
template <int COLUMNS, int ACCESS = GATE_ACCESS>
struct Gate {
    Access<DATA_T, ACCESS> parts[COLUMNS / ACCESS];

    __device__ __forceinline__ void load(const DATA_T* from) {
#pragma unroll
        for (int i = 0; i < COLUMNS / ACCESS; ++i) parts[i].load(from + i * ACCESS);
    }
    __device__ __forceinline__ void multiply(float (&values)[COLUMNS]) const {
        float factors[COLUMNS];
#pragma unroll
        for (int i = 0; i < COLUMNS / ACCESS; ++i) parts[i].unpack(factors + i * ACCESS);
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) values[i] *= silu(factors[i]);
    }
};
template <int COLUMNS>
struct Gate<COLUMNS, 0> {
    __device__ __forceinline__ void load(const DATA_T*) {}
    __device__ __forceinline__ void multiply(float (&)[COLUMNS]) const {}
};
