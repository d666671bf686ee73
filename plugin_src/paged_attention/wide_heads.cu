// Latents of multi-head latent attention, which are keys and values at once and too wide for the registers of one warp:
// a block takes QUERIES queries of a KV head.
//
// A step of KEYS positions has three parts. A warp multiplies a quarter of all columns of the queries, which stay in
// its registers, with half of the keys. Then it adds up the quarters of the scores of 4 queries, which become weights.
// Last, it adds up an eighth of the columns of the weighted values. Positions may be split between blocks, whose
// results wide_merge.cu joins. Latents are copied to shared memory once, to a ring of SLOTS tiles, while earlier ones
// are used.
//
// Macros: DATA_T (16 bits); HEAD_DIM (a multiple of 64); QUERIES (32); KEYS (16, 32 or 64); SLOTS; SOFTCAP (scores are
// bounded). Grid: x covers the tiles of queries of each KV head, y the splits, z the rows or the tokens.
#include "common/launch.cuh"
#include "paged_attention/wide_ring.cuh"
#include "paged_attention/wide_softmax.cuh"

namespace {

constexpr int HALVES = QUERIES / 16;
constexpr int DEPTH = HEAD_DIM / QUARTERS;   // columns of queries and keys that a warp multiplies
constexpr int COLUMNS = HEAD_DIM / WARPS;    // of the values that a warp adds up
constexpr int PARTS = KEYS < 32 ? 1 : 2;     // of the keys of a step
constexpr int WARP_KEYS = KEYS / PARTS;      // that a warp multiplies
constexpr int LATER = SLOTS - 2 * TILES;     // tiles on their way that the next step does not need
static_assert(DEPTH % 16 == 0 && COLUMNS % 8 == 0 && WARP_KEYS % 16 == 0, "whole products");

using M = Mma<DATA_T>;

struct Shared {
    union {
        alignas(128) DATA_T queries[Layout::elements(QUERIES)];  // until they are in registers
        alignas(128) float scores[QUARTERS][QUERIES][SCORES_PITCH];
    };
    alignas(128) Slots slots;
    Weights weights;
};

__device__ __forceinline__ void copy_queries(Shared& shared, const PagedAttention& p, const Work& work) {
    const DATA_T* query = static_cast<const DATA_T*>(p.query);
    for (int i = threadIdx.x; i < QUERIES * UNITS; i += THREADS) {
        const int row = i / UNITS, unit = i % UNITS;
        const bool valid = work.has(p, row);
        const int64_t from = valid ? work.offset(p, row, p.query_token, p.query_head) : 0;
        copy_async_16(shared.queries + Layout::unit(row, unit), query + from + unit * 8, valid);
    }
    commit_copies();
}

// A quarter of the columns of all queries.
struct Queries {
    typename M::A held[DEPTH / 16][HALVES];

    __device__ __forceinline__ Queries(const DATA_T* tile, int column) {
#pragma unroll
        for (int k = 0; k < DEPTH / 16; ++k)
#pragma unroll
            for (int m = 0; m < HALVES; ++m)
                held[k][m] = M::template load_a<Layout>(tile, m * 16, column + k * 16, threadIdx.x % 32);
    }
    // Writes the products with keys `first` to first + WARP_KEYS - 1 of `keys` to scores[query][..].
    __device__ __forceinline__ void multiply(const DATA_T* keys, int first, int column, float* scores) const {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        float s[HALVES][WARP_KEYS / 8][4] = {};
#pragma unroll
        for (int k = 0; k < DEPTH / 16; ++k)
#pragma unroll
            for (int n = 0; n < WARP_KEYS; n += 16) {
                typename M::B b[2];
                M::template load_b<Layout>(b, keys, first + n, column + k * 16, lane);
#pragma unroll
                for (int m = 0; m < HALVES; ++m) {
                    M::multiply(s[m][n / 8], held[k][m], b[0]);
                    M::multiply(s[m][n / 8 + 1], held[k][m], b[1]);
                }
            }
#pragma unroll
        for (int m = 0; m < HALVES; ++m)
#pragma unroll
            for (int n = 0; n < WARP_KEYS / 8; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    *reinterpret_cast<float2*>(scores + (m * 16 + g + 8 * i) * SCORES_PITCH + n * 8 + 2 * t) =
                        make_float2(s[m][n][2 * i], s[m][n][2 * i + 1]);
    }
};

// An eighth of the columns of the weighted values, of all queries.
struct Sums {
    float y[HALVES][COLUMNS / 8][4] = {};

    __device__ __forceinline__ void correct(const float* corrections) {
#pragma unroll
        for (int m = 0; m < HALVES; ++m) {
            float factors[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) factors[i] = corrections[m * 16 + threadIdx.x % 32 / 4 + 8 * i];
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) y[m][n][i] *= factors[i / 2];
        }
    }
    // Adds the values of one tile, whose first key is number `key` of the step.
    __device__ __forceinline__ void add(const DATA_T* weights, const DATA_T* values, int key, int column) {
        const int lane = threadIdx.x % 32;
        unsigned last[4];  // of the last 8 columns, where these are not half of 16: 32 keys
        if constexpr (COLUMNS % 16)
            M::load_transposed(last, values, Layout::unit(lane % TILE_KEYS, (column + COLUMNS) / 8 - 1));
#pragma unroll
        for (int k = 0; k < TILE_KEYS; k += 16) {
            typename M::A a[HALVES];
#pragma unroll
            for (int m = 0; m < HALVES; ++m) a[m] = M::template load_a<WeightLayout>(weights, m * 16, key + k, lane);
#pragma unroll
            for (int n = 0; n + 16 <= COLUMNS; n += 16) {
                typename M::B b[2];
                M::template load_b_transposed<Layout>(b, values, column + n, k, lane);
#pragma unroll
                for (int m = 0; m < HALVES; ++m) {
                    M::multiply(y[m][n / 8], a[m], b[0]);
                    M::multiply(y[m][n / 8 + 1], a[m], b[1]);
                }
            }
            if constexpr (COLUMNS % 16)
#pragma unroll
                for (int m = 0; m < HALVES; ++m)
                    M::multiply(y[m][COLUMNS / 8 - 1], a[m], {{last[k / 8], last[k / 8 + 1]}});
        }
    }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    paged_attention_wide(const __grid_constant__ WideAttention wide) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    wait_for_earlier_kernels();
    const PagedAttention& p = wide.call;
    const Work work(wide);
    if (!work.has_queries(p)) return;
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    // Of the columns and of the keys that the warp multiplies.
    const int quarter = warp % QUARTERS, part = warp / QUARTERS;
    const float factor = score_factor(p);

    copy_queries(shared, p, work);
    Ring ring(p, work);
    ring.copy(shared.slots, p, work, SLOTS - TILES);
    wait_copies<LATER>();
    __syncthreads();  // the queries and the first step's tiles are there
    const Queries queries(shared.queries, quarter * DEPTH);
    Softmax softmax(p, work);
    Sums sums;
    int slot = 0;     // of the step's next tile
    __syncthreads();  // scores may take the place of the queries
    for (int key = work.begin; key < work.end; key += KEYS) {
        const DATA_T* tiles[TILES];
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            tiles[i] = shared.slots[slot];
            slot = slot + 1 == SLOTS ? 0 : slot + 1;
        }
        if (part < PARTS) {
            const int first = part * WARP_KEYS;
            const DATA_T* own = first < TILE_KEYS ? tiles[0] : tiles[TILES - 1];
            queries.multiply(own, first % TILE_KEYS, quarter * DEPTH, shared.scores[quarter][0] + first);
        }
        __syncthreads();  // the scores are there, and every warp is done with the step before
        ring.copy(shared.slots, p, work, TILES);
        softmax.weigh(shared.scores, shared.weights, p, key, work.end, factor);
        wait_copies<LATER>();
        __syncthreads();  // the weights are there, and the tiles of the next step
        sums.correct(shared.weights.corrections);
#pragma unroll
        for (int i = 0; i < TILES; ++i) sums.add(shared.weights.tile, tiles[i], i * TILE_KEYS, warp * COLUMNS);
    }
    let_later_kernels_start();
    __syncthreads();  // every warp has read the corrections
    softmax.finish(shared.weights, factor);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < QUERIES / 8; ++j) {
        const int query = j * 8 + g, m = j / 2, i = j % 2;
        if (!work.has(p, query)) continue;
        const float total = shared.weights.corrections[query], reference = shared.weights.references[query];
        if (wide.outputs) {
            const int64_t place = work.part(wide) * QUERIES + query;
            if (warp == 0 && t == 0) *reinterpret_cast<float2*>(wide.sums + place * 2) = make_float2(reference, total);
            float* to = wide.outputs + place * HEAD_DIM + warp * COLUMNS + 2 * t;
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; ++n)
                *reinterpret_cast<float2*>(to + 8 * n) = make_float2(sums.y[m][n][2 * i], sums.y[m][n][2 * i + 1]);
            continue;
        }
        const float sink = p.sinks ? p.sinks[work.head * p.group + (work.tile * QUERIES + query) % p.group]
                                   : minus_infinity();
        const float normalizer = 1.0f / (total + exp2_approx(sink * LOG2_E - reference));
        DATA_T* to = static_cast<DATA_T*>(p.y) + work.offset(p, query, p.y_token, p.y_head) + warp * COLUMNS + 2 * t;
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n)
            *reinterpret_cast<unsigned*>(to + 8 * n) =
                M::pack(sums.y[m][n][2 * i] * normalizer, sums.y[m][n][2 * i + 1] * normalizer);
    }
}
