// Products of tiles with up to 16 rows of x on tensor cores. The weights of two tiles are the operand of 16 rows, and
// are unpacked directly into its registers. A lane's inputs are the 8 consecutive ones from 8 * (lane % 4) on, for x
// and weights alike.
//
// Macros: those of outputs.cuh and tile.cuh.
#pragma once

#include "common/mma.cuh"
#include "linear_decode/outputs.cuh"
#include "linear_decode/tile.cuh"

// With Int4, work common to a group is done once per sum: codes stay raised by 24, for which the sum of the group is
// corrected at its start, and the scale multiplies the sum. Smaller groups would need too many registers.
constexpr bool IS_INT4 = Weights::BITS == 4 && Weights::LOWER == 0;
constexpr bool GROUP_SUMS = IS_INT4 && (GROUP == 0 || GROUP >= 64 * ROW_BLOCKS);
constexpr int SUM_CHUNKS = GROUP_SUMS && GROUP ? GROUP / 32 : CHUNKS;
constexpr int SUMS = CHUNKS / SUM_CHUNKS;

template <typename W>
__device__ __forceinline__ uint4 operand_from_codes(const typename W::Words& codes, const unsigned char* tile, int c) {
    if constexpr (GROUP_SUMS) {
        return W::raised_pairs(codes);
    } else {
        return weights_from_codes(codes, tile, c);
    }
}

// sums[16 weights][8 rows] += products of 8 weights of each of two tiles.
__device__ __forceinline__ void multiply_operands(float (&sums)[4], const uint4& first, const uint4& second,
                                                  const uint4& x) {
    using M = Mma<DATA_T>;
    M::multiply(sums, typename M::A{{first.x, second.x, first.y, second.y}}, typename M::B{{x.x, x.y}});
    M::multiply(sums, typename M::A{{first.z, second.z, first.w, second.w}}, typename M::B{{x.z, x.w}});
}

// A lane's inputs in a slice.
struct Slice {
    Inputs x[CHUNKS];
    // Sums of a group's inputs for the lane's rows; without zero points -24 times these.
    float offsets[SUMS][ROW_BLOCKS][2];

    __device__ __forceinline__ void load(const LinearDecode& params, int slice, float (&squares)[ROW_BLOCKS]) {
        load_inputs(x, params, slice * TILE_INPUTS + threadIdx.x % 4 * 8, params.inputs, squares);
        if constexpr (GROUP_SUMS) {
            // With zero points, offset_factor applies -(24 + zero point) later.
            const unsigned factor =
                ZERO_POINTS ? twice(from_float<DATA_T>(1.0f)) : Pair<DATA_T>::INT4_OFFSET | 0x80008000u;
            const uint4 factors = make_uint4(factor, factor, factor, factor);
#pragma unroll
            for (int j = 0; j < SUMS; j++) {
#pragma unroll
                for (int b = 0; b < ROW_BLOCKS; b++) {
                    float sums[4] = {};
#pragma unroll
                    for (int c = 0; c < SUM_CHUNKS; c++)
                        multiply_operands(sums, factors, factors, x[j * SUM_CHUNKS + c].rows[b]);
                    offsets[j][b][0] = sums[0];
                    offsets[j][b][1] = sums[1];
                }
            }
        }
    }

    // Adds the products with two tiles to `sums`.
    __device__ __forceinline__ void multiply_tiles(float (&sums)[ROW_BLOCKS][4], const unsigned char* first,
                                                   const unsigned char* second) const {
        TileCodes codes[2];
#pragma unroll
        for (int j = 0; j < SUMS; j++) {
            float group[ROW_BLOCKS][4] = {};
            if constexpr (GROUP_SUMS) {
                const float factors[2] = {offset_factor(first, j), offset_factor(second, j)};
#pragma unroll
                for (int b = 0; b < ROW_BLOCKS; b++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) group[b][i] = factors[i / 2] * offsets[j][b][i % 2];
                }
            }
#pragma unroll
            for (int c = j * SUM_CHUNKS; c < (j + 1) * SUM_CHUNKS; c++) {
                if (c % VECTOR == 0) codes[0].load(first, c), codes[1].load(second, c);
                const uint4 a = operand_from_codes<Weights>(codes[0].of(c), first, c);
                const uint4 b = operand_from_codes<Weights>(codes[1].of(c), second, c);
#pragma unroll
                for (int r = 0; r < ROW_BLOCKS; r++) multiply_operands(group[r], a, b, x[c].rows[r]);
            }
            const float scales[2] = {sum_scale(first, j), sum_scale(second, j)};
#pragma unroll
            for (int b = 0; b < ROW_BLOCKS; b++) {
#pragma unroll
                for (int i = 0; i < 4; i++) sums[b][i] = fmaf(group[b][i], scales[i / 2], sums[b][i]);
            }
        }
    }

    // The factor of the sums of group j.
    static __device__ __forceinline__ float sum_scale(const unsigned char* tile, int j) {
        if (!GROUP_SUMS || GROUP == 0) return UNIT;
        return to_float(tile_number(tile, j));
    }

    // The factor of `offsets` of group j.
    static __device__ __forceinline__ float offset_factor(const unsigned char* tile, int j) {
        return ZERO_POINTS ? -24.0f - to_float(tile_number(tile, j, SCALE_BYTES)) : 1.0f;
    }
};
