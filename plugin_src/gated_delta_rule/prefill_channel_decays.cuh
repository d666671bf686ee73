// Sixteen tokens of a chunk in the registers of a warp: their keys and queries times the decays of channels between
// them, for prefill_channels.cu.
//
// Macros: DATA_T; KEY_SIZE.
#pragma once

#include "common/math.cuh"
#include "gated_delta_rule/prefill_inverse.cuh"

namespace {

constexpr int WARPS = CHUNK / BLOCK, THREADS = 32 * WARPS;
constexpr float LOG2_E = 1.44269504088896340736f;

using Inner = InnerType<DATA_T>::type;
using InnerProduct = Mma<Inner>;
using Tile = TileLayout<DATA_T, KEY_SIZE>;
using InnerTile = TileLayout<Inner, KEY_SIZE>;
constexpr int TILE_ELEMENTS = InnerTile::elements(CHUNK);
using Prepared = PreparedChannels<Inner, TILE_ELEMENTS, KEY_SIZE>;

// Channels of one product, and their tiles of eight.
constexpr int CHANNELS = InnerProduct::K, TILES = CHANNELS / 8;
// Tokens by channels as accumulators lie: lane 4g + t has rows g (elements 0 and 1) and g + 8 (2 and 3) of columns 2t
// and 2t + 1 of each tile.
using Fragment = float[TILES][4];

__device__ __forceinline__ int lane_row() { return threadIdx.x % 32 / 4; }
__device__ __forceinline__ int lane_column() { return threadIdx.x % 4 * 2; }

// Rows `row` to `row` + 15 and the channels from `channel` on of a tile.
template <typename T>
__device__ __forceinline__ void load_fragment(Fragment& to, const T* tile, int row, int channel) {
    if constexpr (sizeof(T) == 2) {
        const typename Mma<T>::A a = Mma<T>::template load_a<TileLayout<T, KEY_SIZE>>(tile, row, channel,
                                                                                     threadIdx.x % 32);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = Mma<T>::unpack(a.r[i]);
            to[i / 2][i % 2 * 2] = pair.x;
            to[i / 2][i % 2 * 2 + 1] = pair.y;
        }
    } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int at = TileLayout<T, KEY_SIZE>::at(row + lane_row() + half * 8, channel + lane_column());
            const float2 pair = *reinterpret_cast<const float2*>(tile + at);
            to[0][2 * half] = pair.x;
            to[0][2 * half + 1] = pair.y;
        }
    }
}

// The same places, rounded to Inner: first * second.
__device__ __forceinline__ void store_product(Inner* tile, int row, int channel, const Fragment& first,
                                              const Fragment& second) {
#pragma unroll
    for (int n = 0; n < TILES; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int at = InnerTile::at(row + lane_row() + half * 8, channel + n * 8 + lane_column());
            *reinterpret_cast<Vector<Inner, 2>*>(tile + at) = {
                from_float<Inner>(first[n][2 * half] * second[n][2 * half]),
                from_float<Inner>(first[n][2 * half + 1] * second[n][2 * half + 1])};
        }
}

// Decays of a block's tokens in runs of 1, 2, 4 ... of them. after: from the start of a token's run up to it, itself
// included; before: of those behind it up to the run's end.
struct RunDecays {
    Fragment after, before;

    __device__ __forceinline__ explicit RunDecays(const Fragment& g) {
#pragma unroll
        for (int i = 0; i < 4 * TILES; ++i) {
            after[i / 4][i % 4] = exp2_approx(g[i / 4][i % 4] * LOG2_E);
            before[i / 4][i % 4] = 1.0f;
        }
    }
    // From runs of STEP tokens, at most 4, to those of twice as many.
    template <int STEP>
    __device__ __forceinline__ void widen() {
        const int row = lane_row(), last = (row ^ STEP) | (STEP - 1);
        const bool is_second = row & STEP;
#pragma unroll
        for (int i = 0; i < 4 * TILES; ++i) {
            float &own_after = after[i / 4][i % 4], &own_before = before[i / 4][i % 4];
            const float neighbour = __shfl_sync(~0u, own_after, last * 4 + threadIdx.x % 4);
            if (is_second)
                own_after *= neighbour;
            else
                own_before *= neighbour;
        }
    }
    // From runs of 8 tokens to the block.
    __device__ __forceinline__ void widen_to_block() {
#pragma unroll
        for (int n = 0; n < TILES; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int last = 28 + threadIdx.x % 4;
                const float first = __shfl_sync(~0u, after[n][e], last);
                const float second = __shfl_sync(~0u, after[n][2 + e], last);
                before[n][e] *= second;
                after[n][2 + e] *= first;
            }
    }
};

// Products of a block's tokens with each other, of queries (elements 0 and 1) and of keys (2 and 3) with keys: rows g
// of eight tokens, columns 2t and 2t + 1.
struct BlockProducts {
    // Of the first and last eight tokens with each other, where runs of 1, 2 and 4 tokens meet; of the last with the
    // first.
    float within[3][2][4] = {}, across[4] = {};

    // Where two runs of STEP tokens meet.
    template <int STEP>
    __device__ __forceinline__ void add_within(float (&sums)[2][4], const Fragment& keys, const Fragment& queries,
                                               const RunDecays& decays) {
        const bool is_second = lane_row() & STEP;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            Fragment scaled;
#pragma unroll
            for (int n = 0; n < TILES; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int i = 2 * half + e;
                    const float factor = is_second ? decays.after[n][i] : decays.before[n][i];
                    scaled[n][e] = queries[n][i] * factor;
                    scaled[n][2 + e] = keys[n][i] * factor;
                }
            const typename InnerProduct::A rows = InnerProduct::a_from_accumulators(scaled);
            InnerProduct::multiply(sums[half], rows, InnerProduct::b_from_a(rows, 1));
        }
    }
    __device__ __forceinline__ void add_across(const Fragment& keys, const Fragment& queries,
                                               const RunDecays& decays) {
        Fragment first, second;
#pragma unroll
        for (int n = 0; n < TILES; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                second[n][e] = queries[n][2 + e] * decays.after[n][2 + e];
                second[n][2 + e] = keys[n][2 + e] * decays.after[n][2 + e];
                first[n][e] = 0.0f;
                first[n][2 + e] = keys[n][e] * decays.before[n][e];
            }
        const typename InnerProduct::A columns = InnerProduct::a_from_accumulators(first);
        InnerProduct::multiply(across, InnerProduct::a_from_accumulators(second), InnerProduct::b_from_a(columns, 1));
    }
    // Multiplies the channels of these fragments, whose decays it widens to the block.
    __device__ __forceinline__ void add(const Fragment& keys, const Fragment& queries, RunDecays& decays) {
        add_within<1>(within[0], keys, queries, decays);
        decays.widen<1>();
        add_within<2>(within[1], keys, queries, decays);
        decays.widen<2>();
        add_within<4>(within[2], keys, queries, decays);
        decays.widen<4>();
        add_across(keys, queries, decays);
        decays.widen_to_block();
    }
    // Of token i and an earlier one j of the same eight, element e of their half.
    __device__ __forceinline__ float of_eight(int half, int e, int i, int j) const {
        const int parting = i ^ j;
        return parting >= 4 ? within[2][half][e] : parting >= 2 ? within[1][half][e] : within[0][half][e];
    }
};

}  // namespace
