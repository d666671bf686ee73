// Ragged causal attention over pages on warp-level tensor cores (sm_80 and up), after FlashAttention-2
// (arXiv 2307.08691): scores of a block of keys, their softmax with a running reference, weights times values, all in
// registers. A block has one tile of prefill_tiles.cuh and one KV head. Each warp owns its rows of the tile, 16 or 32.
//   scores = scale * Q K^T;  y = softmax(scores) V
// Keys and values lie in shared memory one block at a time: a block's values arrive until their weights are there, and
// the next block's keys while those are multiplied.
//
// Macros: DATA_T, CACHE_T (DATA_T, or E4m3 with scales), HEAD_DIM (a multiple of 8), WARPS, TILE_ROWS (16 or 32 for each
// warp), TILE_KEYS (keys of a block, a multiple of 16; a power of two for each warp), SOFTCAP (0, 1). Every head of every
// token and slot starts at a multiple of 16 bytes.
#include "common/launch.cuh"
#include "common/mma.cuh"
#include "paged_attention/prefill_cache.cuh"
#include "paged_attention/prefill_softmax.cuh"
#include "paged_attention/prefill_tiles.cuh"

constexpr int WARP_ROWS = TILE_ROWS / WARPS;
constexpr int ROW_TILES = WARP_ROWS / 16;
constexpr int COLUMNS = (HEAD_DIM + 15) / 16 * 16;  // of a row in shared memory; those past HEAD_DIM are zero
constexpr int WARP_KEYS = TILE_KEYS / WARPS;  // keys that a warp loads
static_assert(32 % WARP_KEYS == 0, "lanes look up the keys of their warp in turns");

using M = Mma<DATA_T>;
// Whether a warp keeps its queries in registers, which are read from shared memory for every block of keys otherwise.
constexpr bool HOLDS_QUERIES = sizeof(DATA_T) == 2 && ROW_TILES * COLUMNS <= 128;
using Layout = TileLayout<DATA_T, COLUMNS>;
constexpr int UNITS = Layout::UNITS;
constexpr int QUERY_ELEMENTS = Layout::elements(TILE_ROWS), KEY_ELEMENTS = Layout::elements(TILE_KEYS);

// Copies ROWS rows of a warp from the row addresses that `offset` gives, in elements; negative: zeros.
template <int ROWS, typename Offset>
__device__ __forceinline__ void load_rows(DATA_T* tile, int first, const DATA_T* source, const Offset& offset) {
    constexpr int UNIT = Layout::UNIT;
#pragma unroll 2  // fully unrolled, addresses take the registers of accumulators
    for (int i = threadIdx.x % 32; i < (ROWS * UNITS + 31) / 32 * 32; i += 32) {
        const int row = min(i / UNITS, ROWS - 1), unit = i % UNITS;
        const long long from = offset(row);
        const bool inside = from >= 0 && unit * UNIT < HEAD_DIM;
        DATA_T* const to = tile + Layout::unit(first + row, unit);
        if (i < ROWS * UNITS) copy_async_16(to, source + (inside ? from + unit * UNIT : 0), inside);
    }
}

__device__ __forceinline__ void load_queries(DATA_T* tile, const PagedAttention& p, const Work& work) {
    const DATA_T* query = static_cast<const DATA_T*>(p.query);
    const int first = threadIdx.x / 32 * WARP_ROWS, lane = threadIdx.x % 32;
    const long long mine = packed_row(p, work, first + lane % WARP_ROWS, p.query_token, p.query_head);
    load_rows<WARP_ROWS>(tile, first, query, [&](int row) { return __shfl_sync(~0u, mine, row); });
}

// Where the key lies that this lane has looked up for its warp, in a block of keys.
__device__ __forceinline__ KeyPlace place_of_lane(const PagedAttention& p, const Work& work, const KeyRange& range,
                                                  int block) {
    const int key = threadIdx.x / 32 * WARP_KEYS + threadIdx.x % WARP_KEYS;
    const int position = block * TILE_KEYS + key;
    return KeyPlace(p, work.head, pool_block(p, work.tile, range, position), position);
}

// A block of keys, or of values, on its way: begun before what does not need it, and ended before what does.
template <typename C, typename T>
struct Arrival {
    __device__ __forceinline__ void begin(T* tile, const T* source, int unit) {
        load_rows<WARP_KEYS>(tile, threadIdx.x / 32 * WARP_KEYS, source, [&](int row) {
            return static_cast<long long>(__shfl_sync(~0u, unit, row)) * KEY_UNIT;
        });
        commit_copies();
    }
    __device__ __forceinline__ void end(T*, float) {}
};
template <typename T>
struct Arrival<E4m3, T> {
    HeldRows<WARP_KEYS, COLUMNS> held;

    __device__ __forceinline__ void begin(T*, const E4m3* source, int unit) { held.load(source, unit); }
    __device__ __forceinline__ void end(T* tile, float scale) {
        const int first = threadIdx.x / 32 * WARP_KEYS;
        held.template store<T>(scale, [&](int row, int unit) { return tile + Layout::unit(first + row, unit); });
    }
};

struct WarpRows {
    float y[ROW_TILES][COLUMNS / 2];
    RunningSoftmax softmax[ROW_TILES];

    __device__ __forceinline__ WarpRows() {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
            softmax[m].clear();
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; ++i) y[m][i] = 0.0f;
        }
    }
};

// The rows of a warp as left operands: held, or read from shared memory where they are needed.
template <bool HELD>
struct Queries {
    const DATA_T* tile;

    __device__ __forceinline__ void hold(const DATA_T* from) { tile = from; }
    __device__ __forceinline__ typename M::A at(int m, int k) const {
        return M::template load_a<Layout>(tile, threadIdx.x / 32 * WARP_ROWS + m * 16, k * M::K, threadIdx.x % 32);
    }
};
template <>
struct Queries<true> {
    typename M::A a[ROW_TILES][COLUMNS / M::K];

    __device__ __forceinline__ void hold(const DATA_T* tile) {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
            for (int k = 0; k < COLUMNS / M::K; ++k) a[m][k] = Queries<false>{tile}.at(m, k);
        }
    }
    __device__ __forceinline__ const typename M::A& at(int m, int k) const { return a[m][k]; }
};

__device__ __forceinline__ void multiply_keys(float (&s)[ROW_TILES][TILE_KEYS / 2], const Queries<HOLDS_QUERIES>& queries,
                                              const DATA_T* keys) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
        for (int i = 0; i < TILE_KEYS / 2; ++i) s[m][i] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < COLUMNS / M::K; ++k) {
        typename M::A a[ROW_TILES];
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) a[m] = queries.at(m, k);
#pragma unroll
        for (int n = 0; n < TILE_KEYS; n += 16) {
            typename M::B b[2];
            M::template load_b<Layout>(b, keys, n, k * M::K, lane);
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) {
                M::multiply(*reinterpret_cast<float(*)[4]>(s[m] + n / 2), a[m], b[0]);
                M::multiply(*reinterpret_cast<float(*)[4]>(s[m] + n / 2 + 4), a[m], b[1]);
            }
        }
    }
}

// y += weights V.
__device__ __forceinline__ void multiply_values(WarpRows& rows, const float (&weights)[ROW_TILES][TILE_KEYS / 2],
                                                const DATA_T* values) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < TILE_KEYS; k += M::K) {
        typename M::A a[ROW_TILES];
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
            a[m] = M::a_from_accumulators(reinterpret_cast<const float(*)[4]>(weights[m] + k / 2));
        }
#pragma unroll
        for (int n = 0; n < COLUMNS; n += 16) {
            typename M::B b[2];
            M::template load_b_transposed<Layout>(b, values, n, k, lane);
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) {
                M::multiply(*reinterpret_cast<float(*)[4]>(rows.y[m] + n / 2), a[m], b[0]);
                M::multiply(*reinterpret_cast<float(*)[4]>(rows.y[m] + n / 2 + 4), a[m], b[1]);
            }
        }
    }
}

// The same for float data, with the products of a block summed up apart: tensor cores truncate their sums, which 1e-5
// does not hide over thousands of keys.
__device__ __forceinline__ void multiply_values_apart(WarpRows& rows, const float (&weights)[ROW_TILES][TILE_KEYS / 2],
                                                      const DATA_T* values) {
    const int lane = threadIdx.x % 32;
    typename M::A a[TILE_KEYS / M::K];
#pragma unroll
    for (int k = 0; k < TILE_KEYS / M::K; ++k) {
        a[k] = M::a_from_accumulators(reinterpret_cast<const float(*)[4]>(weights[0] + k * M::K / 2));
    }
#pragma unroll
    for (int n = 0; n < COLUMNS; n += 16) {
        float part[2][4] = {};
#pragma unroll
        for (int k = 0; k < TILE_KEYS / M::K; ++k) {
            typename M::B b[2];
            M::template load_b_transposed<Layout>(b, values, n, k * M::K, lane);
            M::multiply(part[0], a[k], b[0]);
            M::multiply(part[1], a[k], b[1]);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) rows.y[0][n / 2 + i] += part[i / 4][i % 4];
    }
}

__device__ __forceinline__ void store_outputs(const PagedAttention& p, const Work& work, const WarpRows& rows, float factor) {
    const int row = threadIdx.x / 32 * WARP_ROWS, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int index = row + m * 16 + half * 8 + g;
            const int head = work.head * p.group + (work.tile.first + index) % p.group;
            const float normalizer = rows.softmax[m].normalizer(half, factor, p.sinks ? p.sinks[head] : minus_infinity());
            const long long to = packed_row(p, work, index, p.y_token, p.y_head);
            if (to < 0) continue;
            DATA_T* y = static_cast<DATA_T*>(p.y) + to + 2 * t;
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; ++n) {
                const float* pair = rows.y[m] + 4 * n + 2 * half;
                *reinterpret_cast<Vector<DATA_T, 2>*>(y + 8 * n) = {from_float<DATA_T>(pair[0] * normalizer),
                                                                    from_float<DATA_T>(pair[1] * normalizer)};
            }
        }
    }
}

__device__ __forceinline__ void weigh_scores(float (&s)[ROW_TILES][TILE_KEYS / 2], WarpRows& rows, const PagedAttention& p,
                                             const Work& work, const KeyRange& range, int key, float factor) {
    // Whether the first token of the tile, or with a sliding window the last one, does not see every key.
    const bool partly = key + TILE_KEYS - 1 > work.tile.cached + work.tile.first / p.group ||
                        (p.sliding_window > 0 && key < range.end - p.sliding_window);
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m) {
        if constexpr (SOFTCAP) bound_scores<sizeof(DATA_T) == 4>(s[m], p);
        if (partly) {
            const int row = work.tile.first + threadIdx.x / 32 * WARP_ROWS + m * 16 + threadIdx.x % 32 / 4;
            const int positions[2] = {work.tile.cached + row / p.group, work.tile.cached + (row + 8) / p.group};
            hide_scores(s[m], positions, key, visible_span(p));
        }
        float correction[2];
        if (rows.softmax[m].follow(s[m], correction, factor)) {
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; ++i) rows.y[m][i] *= correction[i / 2 % 2];
        }
        rows.softmax[m].weigh(s[m], factor);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
paged_attention_prefill_mma(const __grid_constant__ PagedAttention p) {
    extern __shared__ __align__(128) unsigned char memory[];
    wait_for_earlier_kernels();
    let_later_kernels_start();
    Work work = {tile_of_rank(p, blockIdx.x / p.kv_heads), static_cast<int>(blockIdx.x % p.kv_heads)};
    if (work.tile.row < 0) return;
    const KeyRange range(p, work.tile);
    DATA_T* tile = reinterpret_cast<DATA_T*>(memory);
    DATA_T *keys = tile + QUERY_ELEMENTS, *values = keys + KEY_ELEMENTS;
    const CACHE_T* key_pool = static_cast<const CACHE_T*>(p.kv_pool) + work.head * p.pool_head;

    int block = (range.end - 1) / TILE_KEYS;
    const int last_block = range.begin / TILE_KEYS;
    KeyPlace place = place_of_lane(p, work, range, block);
    Arrival<CACHE_T, DATA_T> arriving_keys, arriving_values;
    load_queries(tile, p, work);
    commit_copies();
    arriving_keys.begin(keys, key_pool, place.unit);
    WarpRows rows;
    Queries<HOLDS_QUERIES> queries;
    wait_copies<0>();
    __syncwarp();
    queries.hold(tile);
    const float factor = score_factor(p);
    for (; block >= last_block; --block) {
        float s[ROW_TILES][TILE_KEYS / 2];
        arriving_keys.end(keys, place.key_scale);
        wait_copies<0>();
        __syncthreads();  // the keys are there, and every warp is done with the values before these
        arriving_values.begin(values, key_pool + p.pool_values, place.unit);
        // Before the products, as the table is in memory; with scales too few registers are left. Past the last block: zeros.
        if constexpr (!IS_FP8) place = place_of_lane(p, work, range, block - 1);
        multiply_keys(s, queries, keys);
        arriving_values.end(values, place.value_scale);
        if constexpr (IS_FP8) place = place_of_lane(p, work, range, block - 1);
        __syncthreads();  // every warp is done with the keys
        arriving_keys.begin(keys, key_pool, place.unit);
        weigh_scores(s, rows, p, work, range, block * TILE_KEYS, factor);
        if constexpr (!IS_FP8) {
            wait_copies<1>();
            __syncthreads();  // the values are there
        }
        if constexpr (sizeof(DATA_T) == 4) {
            static_assert(sizeof(DATA_T) != 4 || ROW_TILES == 1, "float data has 16 rows per warp");
            multiply_values_apart(rows, s, values);
        } else {
            multiply_values(rows, s, values);
        }
    }
    wait_copies<0>();  // no thread ends before its copies
    // Read again, as no register holds them through the loop.
    work.tile.first_token = p.query_start_loc[work.tile.row];
    work.tile.tokens = p.query_start_loc[work.tile.row + 1] - work.tile.first_token;
    store_outputs(p, work, rows, factor);
}
