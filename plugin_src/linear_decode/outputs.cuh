// What the algorithms of linear_decode share: which outputs a block computes, x in registers, and the epilogue.
//
// Macros: DATA_T (bfloat16 or half); OUT_T; ROW_BLOCKS (1: up to 8 rows of x, 2: up to 16); SUM_ROWS (of x, whose sums
// are stored: 1, or all); GROUPS (of 8 weight rows that a block works on at a time); THREADS; NORM; GATED
// (silu(gate) * up); RELU2.
#pragma once

#include "common/math.cuh"
#include "linear_decode/fragments.cuh"
#include "linear_decode/params.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int ROWS = 8 * ROW_BLOCKS;
constexpr int MATRICES = GATED ? 2 : 1;
constexpr int PASS = GROUPS / MATRICES;  // groups of outputs of a pass; group q of weights is of matrix q % MATRICES
static_assert(GROUPS % MATRICES == 0, "a pass has whole outputs");

// Every warp's sums over its share of the inputs: of the products of a pass, and of the squares of x.
using Products = float[WARPS][GROUPS][SUM_ROWS][8];
using Squares = float[WARPS][ROWS];

// The outputs of this block, in groups of 8 and passes. In a round all blocks read one after another, so that what is
// read at a time is one piece of memory; the groups that do not fill a round are shared out evenly.
struct Span {
    int rounds, tail, tail_end;

    __device__ __forceinline__ explicit Span(int outputs) {
        const int groups = (outputs + 7) / 8, blocks = gridDim.x, block = blockIdx.x;
        rounds = groups / (blocks * PASS);
        const int done = rounds * blocks * PASS, left = groups - done;
        tail = done + left * block / blocks;  // left is less than blocks * PASS
        tail_end = done + left * (block + 1) / blocks;
    }
    __device__ __forceinline__ int passes() const { return rounds + (tail < tail_end); }
    // The first group of a pass, and how many it has, at most PASS.
    __device__ __forceinline__ int group(int pass) const {
        return pass < rounds ? (pass * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)) * PASS : tail;
    }
    __device__ __forceinline__ int groups(int pass) const { return pass < rounds ? PASS : tail_end - tail; }
};

// A lane's share of 32 inputs of x, as the first operand of two products: 8 inputs of row g, and of row g + 8.
struct Inputs {
    uint4 rows[ROW_BLOCKS];

    // Rows and inputs that do not exist are zeros.
    __device__ __forceinline__ void load(const LinearDecode& params, int g, int input) {
        const DATA_T* x = static_cast<const DATA_T*>(params.x) + input;
#pragma unroll
        for (int b = 0; b < ROW_BLOCKS; b++) {
            const int row = g + 8 * b;
            rows[b] = make_uint4(0, 0, 0, 0);
            if (row < params.rows && input < params.inputs)
                rows[b] = *reinterpret_cast<const uint4*>(x + row * params.x_stride);
        }
    }

    // Adds the squares to `squares` and multiplies by the norm's weight; the root mean square divides the result.
    __device__ __forceinline__ void scale(const uint4& weight, float (&squares)[ROW_BLOCKS]) {
        const unsigned* weights = reinterpret_cast<const unsigned*>(&weight);
#pragma unroll
        for (int b = 0; b < ROW_BLOCKS; b++) {
            unsigned* words = reinterpret_cast<unsigned*>(&rows[b]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 x = float_pair<DATA_T>(words[i]), w = float_pair<DATA_T>(weights[i]);
                squares[b] = fmaf(x.x, x.x, fmaf(x.y, x.y, squares[b]));
                words[i] = word_from<DATA_T>(x.x * w.x, x.y * w.y);
            }
        }
    }
};

// The norm's weight at 8 inputs.
__device__ __forceinline__ uint4 load_norm_weight(const LinearDecode& params, int input) {
    if (input >= params.inputs) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4*>(static_cast<const DATA_T*>(params.norm_weight) + input);
}

// A lane's inputs of x, chunks of 32 from `first` on; those from `end` on are zeros. With a norm they are multiplied by
// its weight, and their squares are added to `squares`.
template <int CHUNKS>
__device__ __forceinline__ void load_inputs(Inputs (&x)[CHUNKS], const LinearDecode& params, int first, int end,
                                            float (&squares)[ROW_BLOCKS]) {
    const int row = threadIdx.x % 32 / 4;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) x[c].load(params, row, first + 32 * c < end ? first + 32 * c : params.inputs);
    if (NORM) {
        constexpr int AT_ONCE = (CHUNKS + 1) / 2;  // few weights at a time, for the sake of registers
#pragma unroll
        for (int begin = 0; begin < CHUNKS; begin += AT_ONCE) {
            uint4 weights[AT_ONCE];
#pragma unroll
            for (int c = 0; c < AT_ONCE; c++) weights[c] = load_norm_weight(params, first + 32 * (begin + c));
#pragma unroll
            for (int c = 0; c < AT_ONCE; c++) x[begin + c].scale(weights[c], squares);
            asm volatile("" ::: "memory");
        }
    }
}

// sums += x * weights^T over the 32 inputs of a warp.
__device__ __forceinline__ void multiply(float (&sums)[4], const Inputs& x, const uint4& weights) {
    const uint4 low = x.rows[0], high = ROW_BLOCKS == 2 ? x.rows[ROW_BLOCKS - 1] : make_uint4(0, 0, 0, 0);
    multiply_16x8x16<DATA_T>(sums, low.x, high.x, low.y, high.y, weights.x, weights.y);
    multiply_16x8x16<DATA_T>(sums, low.z, high.z, low.w, high.w, weights.z, weights.w);
}

// Puts a warp's sums of a pass where others can read them.
__device__ __forceinline__ void store_products(Products& shared, const float (&sums)[GROUPS][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; b++) {
        if (g + 8 * b >= SUM_ROWS) continue;
#pragma unroll
        for (int q = 0; q < GROUPS; q++)
            *reinterpret_cast<float2*>(&shared[warp][q][g + 8 * b][2 * t]) =
                make_float2(sums[q][2 * b], sums[q][2 * b + 1]);
    }
}

__device__ __forceinline__ void store_squares(Squares& shared, const float (&squares)[ROW_BLOCKS]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; b++) {
        float square = squares[b];
        square += __shfl_xor_sync(0xffffffffu, square, 1);
        square += __shfl_xor_sync(0xffffffffu, square, 2);
        if (lane % 4 == 0) shared[warp][lane / 4 + 8 * b] = square;
    }
}

// The warps' sums of one product, in order.
__device__ __forceinline__ float total(const Products& shared, int group, int row, int column) {
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) sum += shared[warp][group][row][column];
    return sum;
}

// 1 / (root mean square of a row of x).
__device__ __forceinline__ float norm_scale(const LinearDecode& params, const Squares& shared, int row) {
    float squares = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) squares += shared[warp][row];
    return rsqrtf(squares / params.inputs + params.epsilon);
}

// Writes the outputs of a pass of `groups` groups from `group` on; the caller is one of `threads` that do so.
__device__ __forceinline__ void write_outputs(const LinearDecode& params, const Products& products,
                                              const Squares& squares, int group, int groups, int thread,
                                              int threads) {
    for (int i = thread; i < params.rows * PASS * 8; i += threads) {
        const int column = i % 8, q = i / 8 % PASS, row = i / (8 * PASS);
        const int output = 8 * (group + q) + column;
        if (q >= groups || output >= params.outputs) continue;
        float residual = 0.0f;  // the first load, as the farthest
        if (params.residual)
            residual = to_float(static_cast<const DATA_T*>(params.residual)[row * params.residual_stride + output]);
        const float scale = NORM ? norm_scale(params, squares, row) : 1.0f;
        float y = scale * total(products, q * MATRICES, row, column);
        if (params.factors) y *= params.factors[output];
        if (params.bias) y += to_float(static_cast<const DATA_T*>(params.bias)[output]);
        if (GATED) {
            y = silu(y) * scale * total(products, q * MATRICES + MATRICES - 1, row, column);
            if (params.up_factors) y *= params.up_factors[output];
        }
        if (RELU2) y = y > 0.0f ? y * y : 0.0f;
        static_cast<OUT_T*>(params.y)[row * params.y_stride + output] = from_float<OUT_T>(y + residual);
    }
}
