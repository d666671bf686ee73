// How bulk_copies.cu and row_copies.cu share out the inputs, and a warp's part of x. For their macros, INPUTS (of a
// warp and phase, at most) and PARTS (in which a piece of weights is read).
#pragma once

#include "common/launch.cuh"
#include "linear_decode/outputs.cuh"

constexpr int CHUNKS = INPUTS / 32;
constexpr int PART = CHUNKS / PARTS;

// How the inputs are shared out: `phases` of WARPS * inputs.
struct Split {
    int phases, inputs;

    __device__ __forceinline__ explicit Split(int all) {
        phases = (all + WARPS * INPUTS - 1) / (WARPS * INPUTS);
        const int units = phases * WARPS * 32;
        inputs = (all + units - 1) / units * 32;
    }
    __device__ __forceinline__ int first(int phase, int warp) const { return (phase * WARPS + warp) * inputs; }
};

// Which piece of 8 weight rows a warp copies next.
struct Piece {
    int pass, q, phase;

    __device__ __forceinline__ void advance(const Span& span, const Split& split) {
        if (++q < MATRICES * span.groups(pass)) return;
        q = 0;
        if (++phase < split.phases) return;
        phase = 0;
        // The next kernel's stream starts when nothing is left for this one to ask for.
        if (++pass == span.passes()) let_later_kernels_start();
    }
};

// A lane's share of the warp's inputs of a phase.
struct Phase {
    Inputs x[CHUNKS];
    int valid;  // inputs from the lane's first on

    __device__ __forceinline__ void load(const LinearDecode& params, const Split& split, int phase,
                                         float (&squares)[ROW_BLOCKS]) {
        const int lane = threadIdx.x % 32, first = split.first(phase, threadIdx.x / 32) + 8 * (lane % 4);
        const int end = min(params.inputs, first - 8 * (lane % 4) + split.inputs);
        valid = end - first;
        load_inputs(x, params, first, end, squares);
    }

    // The products of part `part` of a piece.
    __device__ __forceinline__ void multiply_weights(float (&sums)[4], const uint4 (&weights)[PART], int part) const {
        float odd[4] = {};  // a second sum, which need not wait for the first
#pragma unroll
        for (int c = 0; c < PART; c += 2) {
            multiply(sums, x[part * PART + c], weights[c]);
            multiply(odd, x[part * PART + c + 1], weights[c + 1]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) sums[i] += odd[i];
    }
};

