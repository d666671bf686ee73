// A step's keys and values in shared memory, and as operands of products: in the type of the queries, or e4m3 with
// scales.
#pragma once

#include "common/bytes.cuh"
#include "common/mma.cuh"
#include "paged_attention/decode_work.cuh"

using Products = Mma<DATA_T>;
constexpr bool IS_FP8 = sizeof(CACHE_T) == 1;
constexpr int QUERIES = 8 * QUERY_TILES;
constexpr int COLUMNS = (HEAD_DIM + 15) / 16 * 16;
constexpr int DIM_STEPS = COLUMNS / Products::K;   // of the scores' products
constexpr int DIM_TILES = COLUMNS / 16;            // of O^T
constexpr int TOKEN_STEPS = STEP / Products::K;    // of the products with V
// Products whose operands one load of a matrix gives.
constexpr int AT_ONCE = IS_FP8 ? 2 : 1;
using Tile = TileLayout<CACHE_T, COLUMNS>;
constexpr int TILE = Tile::elements(STEP);
constexpr int SCALES_BYTES = IS_FP8 ? 2 * STEP * 4 : 0;
constexpr int STEP_BYTES = 2 * TILE * static_cast<int>(sizeof(CACHE_T)) + SCALES_BYTES;
static_assert(!IS_FP8 || (sizeof(DATA_T) == 2 && HEAD_DIM % 16 == 0), "e4m3 is multiplied as 16-bit numbers");

// Keys, values, then their scales.
struct StepTiles {
    unsigned char* memory;

    __device__ __forceinline__ CACHE_T* keys() const { return reinterpret_cast<CACHE_T*>(memory); }
    __device__ __forceinline__ CACHE_T* values() const { return keys() + TILE; }
    __device__ __forceinline__ float* scales() const { return reinterpret_cast<float*>(values() + TILE); }
};

// Where the keys of a step begin in the pool, and their scales, in elements.
struct Place {
    long long keys, scales;
};

// Copies keys and values of positions low..high-1 of a step; the others become zero, so that a weight of zero never
// meets what is not a number. Of scales, other positions of the page come along.
__device__ __forceinline__ void copy_step(const StepTiles& tiles, const Place& from, const PagedAttention& call,
                                          int low, int high) {
    constexpr int UNITS = HEAD_DIM / Tile::UNIT, ACCESSES = (STEP * UNITS + 31) / 32;
    constexpr int SCALE_ACCESSES = SCALES_BYTES / 16;
    const int lane = threadIdx.x % 32;
    const CACHE_T* keys = static_cast<const CACHE_T*>(call.kv_pool) + from.keys;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const CACHE_T* source = half ? keys + call.pool_values : keys;
        CACHE_T* to = half ? tiles.values() : tiles.keys();
#pragma unroll
        for (int i = 0; i < ACCESSES; ++i) {
            const int index = i * 32 + lane, position = index / UNITS, unit = index % UNITS;
            if (STEP * UNITS % 32 == 0 || index < STEP * UNITS)
                copy_async_16(to + Tile::unit(position, unit), source + position * call.pool_slot + unit * Tile::UNIT,
                              position >= low && position < high);
        }
    }
    if (lane < SCALE_ACCESSES) {
        const int half = lane / (STEP / 4), run = lane % (STEP / 4) * 4;
        copy_async_16(tiles.scales() + 4 * lane, call.kv_scales + from.scales + half * call.scales_values + run, true);
    }
}

// Left operands of AT_ONCE steps of the scores, from step `step` on; in the type of the queries, of one.
template <typename T>
__device__ __forceinline__ void load_keys(typename Mma<T>::A (&a)[1], const T* keys, int step, int lane) {
    a[0] = Mma<T>::template load_a<Tile>(keys, 0, step * Mma<T>::K, lane);
}
// Products with e4m3 take 4 * t, 4 * t + 2 of 16 dims where the hardware has 2 * t, 2 * t + 1 of its first 8, and
// 4 * t + 1, 4 * t + 3 for the other 8: a lane's four neighbouring bytes.
template <typename A, typename T = DATA_T>
__device__ __forceinline__ void load_keys(A (&a)[2], const E4m3* keys, int step, int lane) {
    unsigned r[4];  // both halves of the positions, of 16 dims and of 16 more
    const E4m3* row = keys + Tile::unit(lane % 16, min(step + lane / 16, Tile::UNITS - 1));
    Mma<T>::load_matrices(r, reinterpret_cast<const T*>(row), 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs_from_e4m3<T>(a[i / 2].r[i % 2], a[i / 2].r[i % 2 + 2], r[i]);
}

// Left operands of AT_ONCE tiles of dims, from tile `tile` on, over positions from k on.
template <typename T>
__device__ __forceinline__ void load_values(typename Mma<T>::A (&a)[1], const T* values, int tile, int k, int lane) {
    a[0] = Mma<T>::template load_a_transposed<Tile>(values, 16 * tile, k, lane);
}
// Rows g and g + 8 of a tile are its dims 2 * g and 2 * g + 1.
template <typename A, typename T = DATA_T>
__device__ __forceinline__ void load_values(A (&a)[2], const E4m3* values, int tile, int k, int lane) {
    unsigned r[4];  // 16 dims of both halves of the positions, and 16 more
    const E4m3* row = values + Tile::unit(k + lane % 16, min(tile + lane / 16, Tile::UNITS - 1));
    Mma<T>::load_transposed(r, reinterpret_cast<const T*>(row), 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs_from_e4m3<T>(a[i / 2].r[i % 2 * 2], a[i / 2].r[i % 2 * 2 + 1], r[i]);
}

// The dim of row g, and of row g + 8, of tile `tile` of O^T.
__device__ __forceinline__ int dim_of_row(int tile, int g, int half) {
    return 16 * tile + (IS_FP8 ? 2 * g + half : g + 8 * half);
}

// Powers of two. Queries and weights are multiplied by QUERY and WEIGHT, scores and outputs come out smaller by SCORE
// and OUTPUT: pairs_from_e4m3() gives too small numbers, in bfloat16 next to its smallest.
template <bool FP8, typename T>
struct CacheUnit {
    static constexpr float QUERY = 1.0f, SCORE = 1.0f, WEIGHT = 1.0f, OUTPUT = 1.0f;
};
template <>
struct CacheUnit<true, __half> {
    static constexpr float QUERY = 1.0f, SCORE = 0x1p8f, WEIGHT = 0x1p8f, OUTPUT = 1.0f;
    static_assert(PairCode<__half>::LOWER == 8, "2^8");
};
template <>
struct CacheUnit<true, __nv_bfloat16> {
    static constexpr float QUERY = 0x1p100f, SCORE = 0x1p20f, WEIGHT = 0x1p100f, OUTPUT = 0x1p20f;
    static_assert(PairCode<__nv_bfloat16>::LOWER == 120, "100 + 20");
};
using Units = CacheUnit<IS_FP8, DATA_T>;
