// (I + L)^-1 of the strictly lower triangles of two value heads, for prefill_prepare_pairs.cu.
//
// Blocks of 16 x 16: D_j, the inverses of those on the diagonal, by forward substitution in float, then column after
// column X_jj = D_j, X_ij = -D_i (sum of L_ik X_kj over j <= k < i). All factors are true inverses, so that nothing
// cancels, as it would in a series of powers of L where keys resemble each other. Products have 22 bits: a factor is
// the sum of two halves.
#pragma once

#include "common/mma.cuh"
#include "gated_delta_rule/prefill_substitution.cuh"

namespace {

using Half = Mma<__half>;
constexpr int BLOCKS = CHUNK / BLOCK, BLOCK_ELEMENTS = BLOCK * BLOCK;

// Of a block of 16 x 16, in the layout of those of Triangle<__half>: where this lane's row of an 8 x 8 matrix starts.
// The matrices are (rows 0 to 7, columns 0 to 7), (0 to 7, 8 to 15), (8 to 15, 0 to 7), (8 to 15, 8 to 15).
__device__ __forceinline__ int lane_place() {
    const int lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8, unit = lane / 8 % 2;
    return row * BLOCK + (unit ^ (row / 4 % 2)) * 8;
}

// Matrices to a block; each lane has two neighbours of a row of each. place: lane_place().
__device__ __forceinline__ void put_block(__half* block, int place, const unsigned (&matrices)[4]) {
#if GROUP_PRODUCTS
    store_matrices(shared_address(block + place), matrices[0], matrices[1], matrices[2], matrices[3]);
#else
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        *reinterpret_cast<unsigned*>(block + (g + i / 2 * 8) * BLOCK + (i % 2 ^ g / 4) * 8 + 2 * t) = matrices[i];
#endif
}
// The same, each matrix transposed.
__device__ __forceinline__ void put_block_transposed(__half* block, int place, const unsigned (&matrices)[4]) {
#if GROUP_PRODUCTS
    store_matrices_transposed(shared_address(block + place), matrices[0], matrices[1], matrices[2], matrices[3]);
#else
    unsigned turned[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned[i]) : "r"(matrices[i]));
    put_block(block, place, turned);
#endif
}

// Floats as sums of two halves, each a left operand.
struct Parts {
    Half::A high, low;

    __device__ __forceinline__ void split(const float (&values)[2][4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float x = values[i / 2][i % 2 * 2], y = values[i / 2][i % 2 * 2 + 1];
            high.r[i] = Half::pack(x, y);
            const float2 rounded = Half::unpack(high.r[i]);
            low.r[i] = Half::pack(x - rounded.x, y - rounded.y);
        }
    }
};

// A block of 16 x 16 as the sum of two.
struct SplitBlock {
    __half high[BLOCK_ELEMENTS], low[BLOCK_ELEMENTS];

    // sum += left @ this^T.
    __device__ __forceinline__ void multiply(float (&sum)[2][4], const Parts& left) const {
        const int place = lane_place();
        unsigned above[4], rest[4];
        Half::load_matrices(above, high, place);
        Half::load_matrices(rest, low, place);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const Half::B big = {{above[2 * n], above[2 * n + 1]}}, small = {{rest[2 * n], rest[2 * n + 1]}};
            Half::multiply(sum[n], left.low, big);
            Half::multiply(sum[n], left.high, small);
            Half::multiply(sum[n], left.high, big);
        }
    }
};

// A block of L on the diagonal, transposed; then its inverse without the ones of its diagonal. Before both it is free.
union DiagonalBlock {
    float transposed[BLOCK_ELEMENTS];
    SplitBlock inverse;
    __half scratch[2][BLOCK_ELEMENTS];

    // Where transposed (row, column) lies: units of a column are spread over the banks.
    __device__ static __forceinline__ int at(int row, int column) {
        return row * BLOCK + (column / 4 ^ row / 2 % 4) * 4 + column % 4;
    }
};

// Of one value head, in shared memory.
struct HeadTriangle {
    alignas(16) DiagonalBlock diagonal[BLOCKS];
    SplitBlock below[BLOCKS * (BLOCKS - 1) / 2];  // of L

    __device__ static __forceinline__ int index_below(int i, int j) { return i * (i - 1) / 2 + j; }
};

// Block (i, j) of a triangle in memory, from a warp's copy in shared memory.
__device__ __forceinline__ void store_block(__half* triangle, const __half* block, int i, int j) {
    const int lane = threadIdx.x % 32;
    uint4* to = reinterpret_cast<uint4*>(triangle + (Triangle<__half>::first_block(j) + i - j) * BLOCK_ELEMENTS);
    to[lane] = reinterpret_cast<const uint4*>(block)[lane];
}

// Block `index` of the diagonals of two heads by one warp: lane c of either half has column c of one of the inverses.
__device__ __forceinline__ void invert_diagonal(HeadTriangle* heads, int index) {
    const int c = threadIdx.x % BLOCK;
    DiagonalBlock& block = heads[threadIdx.x % 32 / BLOCK].diagonal[index];
    float column[BLOCK];
    substitute_forward<DiagonalBlock>(column, block.transposed, c);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < BLOCK; ++i) {
        const float value = i == c ? 0.0f : column[i];
        const __half high = __float2half_rn(value);
        const int at = i * BLOCK + (c / 8 ^ (i / 4 % 2)) * 8 + c % 8;
        block.inverse.high[at] = high;
        block.inverse.low[at] = __float2half_rn(value - __half2float(high));
    }
    __syncwarp();
}

// Column j of a head's inverse below the diagonal, by one warp. scratch: a block of the warp's own; above: X_kj^T from
// k = j on.
struct InverseColumn {
    const HeadTriangle& head;
    const int j;
    __half *scratch, *triangle;
    Parts above[BLOCKS - 1];

    __device__ __forceinline__ void store() {
        const int lane = threadIdx.x % 32, place = lane_place();
        const SplitBlock& first = head.diagonal[j].inverse;
        Half::load_transposed(above[0].high.r, first.high, place);
        Half::load_transposed(above[0].low.r, first.low, place);
        const unsigned one = lane / 8 == lane % 4 ? 0x3c00u << lane / 4 % 2 * 16 : 0u;
        above[0].high.r[0] |= one;
        above[0].high.r[3] |= one;
        store_below<1>();
    }
    template <int D>
    __device__ __forceinline__ void store_below() {
        if (j + D >= BLOCKS) return;
        const int place = lane_place();
        float sum[2][4] = {};
#pragma unroll
        for (int k = 0; k < D; ++k) head.below[HeadTriangle::index_below(j + D, j + k)].multiply(sum, above[k]);
        Parts found;
        found.split(sum);
        head.diagonal[j + D].inverse.multiply(sum, found);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum[e / 4][e % 4] = -sum[e / 4][e % 4];
        found.split(sum);
        __syncwarp();
        put_block_transposed(scratch, place, found.high.r);
        __syncwarp();
        store_block(triangle, scratch, j + D, j);
        if constexpr (D + 1 < BLOCKS) {
            above[D] = found;
            store_below<D + 1>();
        }
    }
};

}  // namespace
