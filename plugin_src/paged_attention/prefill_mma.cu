// Ragged causal attention over pages on warp-level tensor cores (sm_80 and up), after FlashAttention-2
// (arXiv 2307.08691): scores of a block of keys, their softmax with a running reference, weights times values, all in
// registers. A block has one tile of prefill_tiles.cuh and one KV head. Each warp owns its rows of the tile, 16 or 32.
//   scores = scale * Q K^T;  y = softmax(scores) V
// Keys and values lie in shared memory one block at a time: a block's values arrive while its keys are multiplied, and
// the next block's keys while its values are. Two teams of warps have the same rows and take turns in the blocks of
// keys; their outputs are added up in the end.
//
// Macros: DATA_T, CACHE_T (DATA_T, or E4m3 with scales), HEAD_DIM (a multiple of 8), TEAMS (1, 2), WARPS (of a team),
// TILE_ROWS (16 or 32 for each warp), TILE_KEYS (keys of a block, a multiple of 16; a power of two for each warp),
// SOFTCAP (0, 1). Every head of every token and slot starts at a multiple of 16 bytes.
#include "common/launch.cuh"
#include "common/mma.cuh"
#include "paged_attention/prefill_keys.cuh"
#include "paged_attention/prefill_softmax.cuh"
#include "paged_attention/prefill_tiles.cuh"

constexpr int WARP_ROWS = TILE_ROWS / WARPS;
constexpr int LOADED_ROWS = WARP_ROWS / TEAMS;  // queries that a warp loads
constexpr int ROW_TILES = WARP_ROWS / 16;
using M = Mma<DATA_T>;
// Whether a warp keeps its queries in registers, which are read from shared memory for every block of keys otherwise.
constexpr bool HOLDS_QUERIES = sizeof(DATA_T) == 2 && ROW_TILES * COLUMNS <= 128;
constexpr int QUERY_ELEMENTS = Layout::elements(TILE_ROWS), KEY_ELEMENTS = Layout::elements(TILE_KEYS);

__device__ __forceinline__ void wait_for_team() {
    if constexpr (TEAMS == 1) {
        __syncthreads();
    } else {
        asm volatile("bar.sync %0, %1;" ::"r"(1 + team()), "n"(32 * WARPS) : "memory");
    }
}

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
    const int first = threadIdx.x / 32 * LOADED_ROWS, lane = threadIdx.x % 32;
    const long long mine = packed_row(p, work, first + lane % LOADED_ROWS, p.query_token, p.query_head);
    load_rows<LOADED_ROWS>(tile, first, query, [&](int row) { return __shfl_sync(~0u, mine, row); });
}

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
    __device__ __forceinline__ typename M::A at(int m, int k, unsigned thread) const {
        return M::template load_a<Layout>(tile, thread / 32 % WARPS * WARP_ROWS + m * 16, k * M::K, thread % 32);
    }
};
template <>
struct Queries<true> {
    typename M::A a[ROW_TILES][COLUMNS / M::K];

    __device__ __forceinline__ void hold(const DATA_T* tile) {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
            for (int k = 0; k < COLUMNS / M::K; ++k) a[m][k] = Queries<false>{tile}.at(m, k, threadIdx.x);
        }
    }
    __device__ __forceinline__ const typename M::A& at(int m, int k, int) const { return a[m][k]; }
};

__device__ __forceinline__ void multiply_keys(float (&s)[ROW_TILES][TILE_KEYS / 2],
                                              const Queries<HOLDS_QUERIES>& queries, const DATA_T* keys) {
    const unsigned thread = thread_again(), lane = thread % 32;
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
        for (int i = 0; i < TILE_KEYS / 2; ++i) s[m][i] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < COLUMNS / M::K; ++k) {
        typename M::A a[ROW_TILES];
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) a[m] = queries.at(m, k, thread);
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
    const unsigned lane = thread_again() % 32;
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

// The same for float data, with the products of a block summed up apart: tensor cores truncate their sums, which
// over thousands of keys is an error of more than 1e-5.
__device__ __forceinline__ void multiply_values_apart(WarpRows& rows, const float (&weights)[ROW_TILES][TILE_KEYS / 2],
                                                      const DATA_T* values) {
    const unsigned lane = thread_again() % 32;
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

__device__ __forceinline__ void store_outputs(const PagedAttention& p, const Work& work, const WarpRows& rows,
                                              float factor) {
    const int row = warp_of_team() * WARP_ROWS, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int index = row + m * 16 + half * 8 + g;
            const int head = work.head * p.group + (work.tile.first + index) % p.group;
            const float normalizer =
                rows.softmax[m].normalizer(half, factor, p.sinks ? p.sinks[head] : minus_infinity());
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

__device__ __forceinline__ void weigh_scores(float (&s)[ROW_TILES][TILE_KEYS / 2], WarpRows& rows,
                                             const PagedAttention& p, const Scope& scope, int key, float factor) {
    // Whether a token of the tile does not see every key.
    const bool partly = key + TILE_KEYS - 1 > again(scope.seen_by_all) || key < again(scope.seen_by_last);
    float most[ROW_TILES][2];
    bool passes = false;
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m) {
        if constexpr (SOFTCAP) bound_scores<sizeof(DATA_T) == 4>(s[m], p);
        if (partly) {
            const int row = again(scope.work.tile.first) + warp_of_team() * WARP_ROWS + m * 16 + threadIdx.x % 32 / 4;
            const int cached = again(scope.work.tile.cached);
            const int positions[2] = {cached + row / p.group, cached + (row + 8) / p.group};
            hide_scores(s[m], positions, key, visible_span(p));
        }
        rows.softmax[m].find_most(s[m], most[m]);
        passes |= rows.softmax[m].passes(most[m], factor);
    }
    if (__any_sync(~0u, passes)) {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
            float correction[2];
            rows.softmax[m].follow_most(most[m], correction, factor);
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; ++i) rows.y[m][i] *= correction[i / 2 % 2];
        }
    }
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m) rows.softmax[m].weigh(s[m], factor);
}

// Adds what the second team has to the first one, through shared memory that no thread reads any more.
struct Merge {
    static constexpr int FLOATS = ROW_TILES * (COLUMNS / 2 + 4), THREADS = 32 * WARPS;
    float* memory;

    __device__ __forceinline__ float* at(int index) const { return memory + index * THREADS + threadIdx.x % THREADS; }

    __device__ __forceinline__ void give(const WarpRows& rows) const {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
            float* const to = at(m * (COLUMNS / 2 + 4));
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; ++i) to[i * THREADS] = rows.y[m][i];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                to[(COLUMNS / 2 + half) * THREADS] = rows.softmax[m].reference[half];
                to[(COLUMNS / 2 + 2 + half) * THREADS] = rows.softmax[m].sum[half];
            }
        }
    }
    __device__ __forceinline__ void take(WarpRows& rows, float factor) const {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
            const float* const from = at(m * (COLUMNS / 2 + 4));
            float own[2], other[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                rows.softmax[m].join(half, from[(COLUMNS / 2 + half) * THREADS],
                                     from[(COLUMNS / 2 + 2 + half) * THREADS], factor, own[half], other[half]);
            }
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; ++i) {
                rows.y[m][i] = rows.y[m][i] * own[i / 2 % 2] + from[i * THREADS] * other[i / 2 % 2];
            }
        }
    }
};
static_assert(TEAMS == 1 || Merge::FLOATS * Merge::THREADS * 4 <=
                                (QUERY_ELEMENTS + 2 * TEAMS * KEY_ELEMENTS) * sizeof(DATA_T),
              "outputs of a team fit in the shared memory of the tiles");

extern "C" __global__ void __launch_bounds__(32 * WARPS * TEAMS, 1)
paged_attention_prefill_mma(const __grid_constant__ PagedAttention p) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ Scope scope;
    wait_for_earlier_kernels();
    let_later_kernels_start();
    Bisection search;
    const Work work = {tile_of_rank(p, blockIdx.x / p.kv_heads, search), static_cast<int>(blockIdx.x % p.kv_heads)};
    if (work.tile.row < 0) return;
    if (threadIdx.x == 0) scope.fill(p, work);
    DATA_T* tile = reinterpret_cast<DATA_T*>(memory);
    DATA_T *keys = tile + QUERY_ELEMENTS + 2 * KEY_ELEMENTS * team(), *values = keys + KEY_ELEMENTS;
    load_queries(tile, p, work);
    commit_copies();
    __syncthreads();  // the scope is there
    int block = (again(scope.range.end) - 1) / TILE_KEYS - team();
    KeyRun run(p, scope, block);
    Arrival<CACHE_T, DATA_T> arriving_keys, arriving_values;
    const auto begin_keys = [&](int of) {
        arriving_keys.begin(keys, run.first(p, scope), p.pool_slot, IS_FP8 ? run.first_scale(p, scope) : nullptr,
                            ReadKeys(scope, run, of));
    };
    const auto begin_values = [&](int of) {
        arriving_values.begin(values, run.first(p, scope) + p.pool_values, p.pool_slot,
                              IS_FP8 ? run.first_scale(p, scope) + p.scales_values : nullptr, ReadKeys(scope, run, of));
    };
    begin_keys(block);
    WarpRows rows;
    Queries<HOLDS_QUERIES> queries;
    wait_copies<0>();
    if constexpr (TEAMS == 1) {
        __syncwarp();
    } else {
        __syncthreads();
    }
    queries.hold(tile);
    const float factor = score_factor(p);
    for (; block >= again(scope.last_block); block -= TEAMS) {
        float s[ROW_TILES][TILE_KEYS / 2];
        arriving_keys.end(keys);
        wait_copies<0>();
        wait_for_team();  // the keys are there, and every warp is done with the values before these
        begin_values(block);
        // Before the products, as the table is in memory; with scales too few registers are left.
        if constexpr (!IS_FP8) run = KeyRun(p, scope, block - TEAMS);
        multiply_keys(s, queries, keys);
        arriving_values.end(values);
        if constexpr (IS_FP8) run = KeyRun(p, scope, block - TEAMS);
        if constexpr (!IS_FP8) wait_copies<0>();
        wait_for_team();  // the values are there, and every warp is done with the keys
        begin_keys(block - TEAMS);  // past the last block: zeros
        weigh_scores(s, rows, p, scope, block * TILE_KEYS, factor);
        if constexpr (sizeof(DATA_T) == 4) {
            static_assert(sizeof(DATA_T) != 4 || ROW_TILES == 1, "float data has 16 rows per warp");
            multiply_values_apart(rows, s, values);
        } else {
            multiply_values(rows, s, values);
        }
    }
    wait_copies<0>();  // no thread ends before its copies
    if constexpr (TEAMS == 2) {
        const Merge merge = {reinterpret_cast<float*>(memory)};
        __syncthreads();  // every warp is done with the tiles
        if (team() == 1) merge.give(rows);
        __syncthreads();
        if (team() == 1) return;
        merge.take(rows, factor);
    }
    store_outputs(p, scope.work, rows, factor);
}
