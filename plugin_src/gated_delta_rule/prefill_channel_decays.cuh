// Keys and queries of a chunk times the decays of their channels, in shared memory, for prefill_channels.cu.
//
// Macros: DATA_T; KEY_SIZE.
#pragma once

#include "gated_delta_rule/prefill_inverse.cuh"

namespace {

constexpr int WARPS = 2 * CHUNK / BLOCK, THREADS = 32 * WARPS;
constexpr int HALF = CHUNK / 2;
constexpr int CHANNELS = THREADS / 2;  // that the block has at a time: a thread has a channel of half the chunk
constexpr int PASSES = (KEY_SIZE + CHANNELS - 1) / CHANNELS;

using Inner = InnerType<DATA_T>::type;
using Tile = TileLayout<DATA_T, KEY_SIZE>;
using InnerTile = TileLayout<Inner, KEY_SIZE>;
constexpr int TILE_ELEMENTS = InnerTile::elements(CHUNK);
using Prepared = PreparedChannels<Inner, TILE_ELEMENTS, KEY_SIZE>;

struct Shared {
    alignas(128) DATA_T k[Tile::elements(CHUNK)];
    alignas(128) DATA_T q[Tile::elements(CHUNK)];
    alignas(128) Inner scaled_k[TILE_ELEMENTS];
    alignas(128) Inner scaled_q[TILE_ELEMENTS];
    alignas(16) float square[Square::ELEMENTS];
    float half_decay[2][KEY_SIZE];  // over each half of the chunk
    float beta[CHUNK];
    float k_unit[CHUNK], q_unit[CHUNK];  // to length 1
    float k_back[CHUNK], q_back[CHUNK];  // and from there to what the formulas have
    float own_score[CHUNK];              // q k, of length 1, of each token
};

// One channel of half a chunk, whose tokens are in runs of 1, 2, 4 ... tokens. after[i]: decays from the start of token
// i's run up to i, itself included; before[i]: those behind i up to the run's end.
struct Channel {
    float after[HALF], before[HALF];

    __device__ __forceinline__ void load(const float* g, int64_t g_token, int valid) {
#pragma unroll
        for (int i = 0; i < HALF; ++i) {
            after[i] = i < valid ? expf(g[i * g_token]) : 1.0f;
            before[i] = 1.0f;
        }
    }
    // The factor of token i where two runs of STEP tokens meet.
    template <int STEP>
    __device__ __forceinline__ float factor(int i, bool second) const {
        return (STEP < HALF ? i / STEP % 2 : second) ? after[i] : before[i];
    }
    // From runs of STEP tokens to those of 2 * STEP.
    template <int STEP>
    __device__ __forceinline__ void widen() {
#pragma unroll
        for (int run = 0; run < HALF; run += 2 * STEP) {
            const float first = after[run + STEP - 1], second = after[run + 2 * STEP - 1];
#pragma unroll
            for (int i = 0; i < STEP; ++i) {
                before[run + i] *= second;
                after[run + STEP + i] *= first;
            }
        }
    }
};

// All channels of half a chunk that a thread has.
struct Channels {
    Channel of[PASSES];

    __device__ static __forceinline__ bool is_second() { return threadIdx.x >= CHANNELS; }
    __device__ static __forceinline__ int token(int i) { return is_second() * HALF + i; }
    __device__ static __forceinline__ int channel(int pass) { return pass * CHANNELS + threadIdx.x % CHANNELS; }
    __device__ static __forceinline__ bool has(int pass) {
        return KEY_SIZE % CHANNELS == 0 || channel(pass) < KEY_SIZE;
    }

    // g: of the chunk's first token and the head.
    __device__ __forceinline__ void load(const float* g, int64_t g_token, int valid) {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
            of[pass].load(g + token(0) * g_token + channel(pass), g_token, has(pass) ? valid - token(0) : 0);
    }
    template <int STEP>
    __device__ __forceinline__ void widen() {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) of[pass].widen<STEP>();
    }
    // Keys, and queries behind a middle, of length 1 times their factors where two runs of STEP tokens meet.
    template <int STEP>
    __device__ __forceinline__ void scale(Shared& shared) const {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            if (!has(pass)) continue;
            const int c = channel(pass);
#pragma unroll
            for (int i = 0; i < HALF; ++i) {
                const int t = token(i);
                const float factor = of[pass].factor<STEP>(i, is_second());
                shared.scaled_k[InnerTile::at(t, c)] =
                    from_float<Inner>(to_float(shared.k[Tile::at(t, c)]) * shared.k_unit[t] * factor);
                if (STEP < HALF ? i / STEP % 2 : is_second())
                    shared.scaled_q[InnerTile::at(t, c)] =
                        from_float<Inner>(to_float(shared.q[Tile::at(t, c)]) * shared.q_unit[t] * factor);
            }
        }
    }
    __device__ __forceinline__ void share_half_decays(Shared& shared) const {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
            if (has(pass)) shared.half_decay[is_second()][channel(pass)] = of[pass].after[HALF - 1];
    }
    // Keys and queries with the decays from the chunk's start on.
    __device__ __forceinline__ void scale_from_start(Shared& shared) const {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            if (!has(pass)) continue;
            const int c = channel(pass);
            const float earlier = is_second() ? shared.half_decay[0][c] : 1.0f;
#pragma unroll
            for (int i = 0; i < HALF; ++i) {
                const int t = token(i);
                const float factor = earlier * of[pass].after[i];
                shared.scaled_k[InnerTile::at(t, c)] =
                    from_float<Inner>(to_float(shared.k[Tile::at(t, c)]) * shared.k_unit[t] * factor);
                shared.scaled_q[InnerTile::at(t, c)] =
                    from_float<Inner>(to_float(shared.q[Tile::at(t, c)]) * shared.q_unit[t] * factor);
            }
        }
    }
    // Keys with the decays to the chunk's end.
    __device__ __forceinline__ void scale_to_end(Shared& shared) const {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            if (!has(pass)) continue;
            const int c = channel(pass);
            const float later = is_second() ? 1.0f : shared.half_decay[1][c];
#pragma unroll
            for (int i = 0; i < HALF; ++i) {
                const int t = token(i);
                shared.scaled_k[InnerTile::at(t, c)] =
                    from_float<Inner>(to_float(shared.k[Tile::at(t, c)]) * shared.k_unit[t] *
                                      (later * of[pass].before[i]));
            }
        }
    }
};

}  // namespace
