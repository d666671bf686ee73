// (I + L)^-1 of a strictly lower triangular L of CHUNK x CHUNK in shared memory, in float, in place of L.
//
// Blocks of 16 on the diagonal by forward substitution, then blocks of twice the size: with X and Z the inverses of the
// two diagonal halves and L the block below, the inverse has -Z L X there. Every product has true inverses as factors,
// so that nothing cancels, as it would in a series of powers of L where keys resemble each other.
#pragma once

#include "common/mma.cuh"
#include "gated_delta_rule/prefill_substitution.cuh"

// [CHUNK][CHUNK], padded so that the rows of one column of fragments lie in different banks.
struct Square {
    static constexpr int PITCH = CHUNK + 4;
    static constexpr int ELEMENTS = CHUNK * PITCH;
    __device__ static __forceinline__ int at(int row, int column) { return row * PITCH + column; }
};

using Exact = Mma<float>;

// sum[16][8 * TILES] += a[16][first..last) * b[first..last)[8 * TILES]; tiles of Square.
template <int TILES>
__device__ __forceinline__ void multiply_square(float (&sum)[TILES][4], const float* a, const float* b,
                                                int first, int last) {
    const int lane = threadIdx.x % 32;
    for (int k = first; k < last; k += Exact::K) {
        const Exact::A rows = Exact::load_a<Square>(a, 0, k, lane);
#pragma unroll
        for (int n = 0; n < TILES; n += 2) {
            Exact::B columns[2];
            Exact::load_b_transposed<Square>(columns, b, n * 8, k, lane);
            Exact::multiply(sum[n], rows, columns[0]);
            Exact::multiply(sum[n + 1], rows, columns[1]);
        }
    }
}

// sum[16][16] += a[16][8 * COUNT] * b[8 * COUNT][16] over the tiles of 8 columns from FIRST on; a in accumulators.
template <int COUNT>
__device__ __forceinline__ void multiply_sums(float (&sum)[2][4], const float (&a)[COUNT][4],
                                              const float* b, int first) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
        if (k < first) continue;
        Exact::B columns[2];
        Exact::load_b_transposed<Square>(columns, b, 0, k * 8, lane);
        const Exact::A rows = Exact::a_from_accumulators(a + k);
        Exact::multiply(sum[0], rows, columns[0]);
        Exact::multiply(sum[1], rows, columns[1]);
    }
}

// target[16][16] = -sum.
__device__ __forceinline__ void store_negative(float* target, const float (&sum)[2][4]) {
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            *reinterpret_cast<float2*>(target + Square::at(row + half * 8, n * 8 + column)) =
                make_float2(-sum[n][2 * half], -sum[n][2 * half + 1]);
}

// One block of the diagonal by one warp, from its transpose; lane c has column c of the inverse.
__device__ __forceinline__ void invert_block(float* block) {
    const int lane = threadIdx.x % 32;
    float column[BLOCK];
    substitute_forward<Square>(column, block, lane);
    __syncwarp();
    if (lane < BLOCK) {
#pragma unroll
        for (int i = 0; i < BLOCK; ++i) block[Square::at(i, lane)] = column[i];
    }
    __syncwarp();
}

// By a block's first four warps; warp w has seen rows 16w to 16w + 15 of L written up to the diagonal, whose
// blocks are transposed. Other warps only take part in the barriers; the function ends with one.
__device__ __forceinline__ void invert_triangle(float* L) {
    const int warp = threadIdx.x / 32;
    __syncwarp();
    if (warp < CHUNK / BLOCK) invert_block(L + Square::at(warp * BLOCK, warp * BLOCK));
    __syncthreads();
    if (warp < 2) {
        const int first = warp * 2 * BLOCK, second = first + BLOCK;
        float left[2][4] = {}, sum[2][4] = {};
        multiply_square(left, L + Square::at(second, second), L + Square::at(second, first), 0, BLOCK);
        multiply_sums(sum, left, L + Square::at(first, first), 0);
        __syncwarp();
        store_negative(L + Square::at(second, first), sum);
    }
    __syncthreads();
    constexpr int HALF = CHUNK / 2;
    const int row = warp / 2 * BLOCK, column = warp % 2 * BLOCK;  // of the half that this warp computes
    float sum[2][4] = {};
    if (warp < CHUNK / BLOCK) {
        float left[4][4] = {};
        multiply_square(left, L + Square::at(HALF + row, HALF), L + Square::at(HALF, 0), 0, row + BLOCK);
        multiply_sums(sum, left, L + Square::at(0, column), column / 8);
    }
    __syncthreads();
    if (warp < CHUNK / BLOCK) store_negative(L + Square::at(HALF + row, column), sum);
    __syncthreads();
}

// The inverse without its diagonal, by THREADS threads.
template <typename T, int THREADS>
__device__ __forceinline__ void store_inverse(T* inverse, const float* square) {
    using Lower = Triangle<T>;
    constexpr int UNITS = CHUNK / Lower::UNIT;
    for (int i = threadIdx.x; i < CHUNK * UNITS; i += THREADS) {
        const int row = i / UNITS, column = i % UNITS * Lower::UNIT;
        if (column / BLOCK > row / BLOCK) continue;
        Vector<T, Lower::UNIT> values;
        const float4* from = reinterpret_cast<const float4*>(square + Square::at(row, column));
#pragma unroll
        for (int e = 0; e < Lower::UNIT; e += 4) {
            const float4 four = from[e / 4];
            const float floats[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) values.data[e + i] = from_float<T>(column + e + i == row ? 0.0f : floats[i]);
        }
        *reinterpret_cast<Vector<T, Lower::UNIT>*>(inverse + Lower::at(row, column)) = values;
    }
}
