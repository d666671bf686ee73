// Heads that are too wide for the registers of one warp, such as the latents of multi-head latent attention: a block takes
// QUERIES queries of a KV head, and all of its warps share the columns of their outputs.
//
// For each KEYS positions, a warp multiplies 16 queries with 8 keys; weights go to shared memory, and the warp adds up a
// quarter of the columns of the weighted values. Positions may be split between blocks, whose results wide_merge.cu joins.
// Keys and values of the next positions are copied while these are computed.
//
// Macros: DATA_T (16 bits); HEAD_DIM (a multiple of 64); KEYS (16 or 32); SOFTCAP (scores are bounded). Grid: x covers the
// tiles of each KV head, y the splits, z the rows.
#include "common/async_copy.cuh"
#include "common/launch.cuh"
#include "common/mma.cuh"
#include "paged_attention/prefill_softmax.cuh"
#include "paged_attention/wide_params.cuh"

namespace {

constexpr int QUERIES = 32, WARPS = 8, THREADS = 32 * WARPS, STAGES = 2;
constexpr int QUARTERS = 4, COLUMNS = HEAD_DIM / QUARTERS;
constexpr int UNITS = HEAD_DIM / 8;         // of 16 bytes in a row
constexpr int WARP_KEYS = KEYS / WARPS;     // rows of keys, and of values, that a warp copies
static_assert(sizeof(DATA_T) == 2 && COLUMNS % 16 == 0 && KEYS % 16 == 0, "whole products");

using M = Mma<DATA_T>;
using Layout = TileLayout<DATA_T, HEAD_DIM>;
using WeightLayout = TileLayout<DATA_T, KEYS>;
constexpr int TILE = Layout::elements(KEYS);

struct Shared {
    alignas(128) DATA_T queries[Layout::elements(QUERIES)];
    alignas(128) DATA_T keys[STAGES][TILE];
    alignas(128) DATA_T values[STAGES][TILE];
    alignas(128) DATA_T weights[WeightLayout::elements(QUERIES)];
    float most[QUARTERS][QUERIES];  // of the scores of each warp's keys, and in the end sums of their weights
};

// A row's tokens and the positions that this block reads.
struct Work {
    int row, head, tile, first_token, tokens, cached, begin, end;

    __device__ __forceinline__ explicit Work(const WideAttention& wide) {
        const PagedAttention& p = wide.call;
        row = blockIdx.z;
        tile = blockIdx.x % wide.tiles;
        head = blockIdx.x / wide.tiles;
        first_token = p.query_start_loc[row];
        tokens = p.query_start_loc[row + 1] - first_token;
        const int length = p.seq_lens[row];
        cached = length - tokens;
        begin = end = 0;
        if (length <= 0 || tokens <= 0 || tile * QUERIES >= tokens * p.group) return;
        const int last = min(tile * QUERIES + QUERIES, tokens * p.group) - 1;
        end = cached + last / p.group + 1;
        if (p.sliding_window > 0) begin = max(0, cached + tile * QUERIES / p.group + 1 - p.sliding_window);
        const int share = (end - begin + wide.splits - 1) / wide.splits, step = (share + KEYS - 1) / KEYS * KEYS;
        begin += blockIdx.y * step;
        end = min(end, begin + step);
    }
    __device__ __forceinline__ bool has_queries(const PagedAttention& p) const { return tile * QUERIES < tokens * p.group; }
    // Whether query `index` of the tile exists.
    __device__ __forceinline__ bool has(const PagedAttention& p, int index) const {
        return tile * QUERIES + index < tokens * p.group;
    }
    __device__ __forceinline__ int64_t offset(const PagedAttention& p, int index, int64_t token_stride, int64_t head_stride) const {
        const int query = tile * QUERIES + index;
        return (first_token + query / p.group) * token_stride + (head * p.group + query % p.group) * head_stride;
    }
};

// Where in the pool the keys are that this warp copies next; negative: there are none, and zeros take their place.
struct Places {
    int64_t offsets[WARP_KEYS];

    __device__ __forceinline__ void find(const PagedAttention& p, const Work& work, int first) {
#pragma unroll
        for (int i = 0; i < WARP_KEYS; ++i) {
            const int position = first + threadIdx.x / 32 * WARP_KEYS + i;
            offsets[i] = -1;
            if (position >= work.end) continue;
            const int block = p.block_table[work.row * p.table_row + position / p.block_size];
            if (block >= 0)
                offsets[i] = block * p.pool_block + position % p.block_size * p.pool_slot + work.head * p.pool_head;
        }
    }
    __device__ __forceinline__ void copy(Shared& shared, int stage, const PagedAttention& p) const {
        const DATA_T* pool = static_cast<const DATA_T*>(p.kv_pool);
#pragma unroll
        for (int i = 0; i < WARP_KEYS; ++i) {
            const int row = threadIdx.x / 32 * WARP_KEYS + i;
            const bool valid = offsets[i] >= 0;
            const DATA_T* from = pool + (valid ? offsets[i] : 0);
#pragma unroll
            for (int unit = threadIdx.x % 32; unit < UNITS; unit += 32) {
                copy_async_16(shared.keys[stage] + Layout::unit(row, unit), from + unit * 8, valid);
                copy_async_16(shared.values[stage] + Layout::unit(row, unit), from + p.pool_values + unit * 8, valid);
            }
        }
        commit_copies();
    }
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

// The scores of 16 queries and 8 keys.
__device__ __forceinline__ void multiply_keys(float (&s)[4], const DATA_T* queries, const DATA_T* keys, int query, int key) {
    const int lane = threadIdx.x % 32;
    float parts[4][4] = {};  // independent sums, which need not wait for each other
#pragma unroll
    for (int k = 0; k < HEAD_DIM; k += 32) {
        unsigned b[4];
        M::load_matrices(b, keys, Layout::unit(key + lane % 8, k / 8 + lane / 8));
#pragma unroll
        for (int i = 0; i < 2; ++i)
            M::multiply(parts[k / 32 % 2 * 2 + i], M::template load_a<Layout>(queries, query, k + i * 16, lane),
                        {{b[2 * i], b[2 * i + 1]}});
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = (parts[0][i] + parts[1][i]) + (parts[2][i] + parts[3][i]);
}

// y += weights V, for 16 queries and a quarter of the columns.
__device__ __forceinline__ void multiply_values(float (&y)[COLUMNS / 8][4], const DATA_T* weights, const DATA_T* values,
                                                int query, int column) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < KEYS; k += 16) {
        const typename M::A a = M::template load_a<WeightLayout>(weights, query, k, lane);
#pragma unroll
        for (int n = 0; n < COLUMNS; n += 16) {
            typename M::B b[2];
            M::template load_b_transposed<Layout>(b, values, column + n, k, lane);
            M::multiply(y[n / 8], a, b[0]);
            M::multiply(y[n / 8 + 1], a, b[1]);
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    paged_attention_wide(const __grid_constant__ WideAttention wide) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    wait_for_earlier_kernels();
    const PagedAttention& p = wide.call;
    const Work work(wide);
    if (p.seq_lens[work.row] <= 0 || work.tokens <= 0 || !work.has_queries(p)) return;
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int half = warp / QUARTERS * 16, quarter = warp % QUARTERS;  // the warp's first query; its keys, and its columns
    const bool has_keys = quarter * 8 < KEYS;
    const float factor = score_factor(p);
    int positions[2];  // of the thread's two queries
#pragma unroll
    for (int i = 0; i < 2; ++i) positions[i] = work.cached + (work.tile * QUERIES + half + g + 8 * i) / p.group;

    copy_queries(shared, p, work);
    Places places;
    places.find(p, work, work.begin);
    places.copy(shared, 0, p);
    places.find(p, work, work.begin + KEYS);
    float y[COLUMNS / 8][4] = {}, most[2] = {minus_infinity(), minus_infinity()}, sum[2] = {};
    int stage = 0;
    for (int key = work.begin; key < work.end; key += KEYS, stage ^= 1) {
        wait_copies<0>();
        __syncthreads();  // these keys and values are there, and every warp is done with those before
        if (key + KEYS < work.end) {
            places.copy(shared, stage ^ 1, p);
            places.find(p, work, key + 2 * KEYS);
        }
        float s[4] = {minus_infinity(), minus_infinity(), minus_infinity(), minus_infinity()};
        if (has_keys) {
            multiply_keys(s, shared.queries, shared.keys[stage], half, quarter * 8);
            if constexpr (SOFTCAP) bound_scores<false>(s, p);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int position = key + quarter * 8 + 2 * t + i % 2;
                const unsigned back = positions[i / 2] - position;  // from the query to the key
                s[i] = position < work.end && back < visible_span(p) ? s[i] : minus_infinity();
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float own = fmaxf(s[2 * i], s[2 * i + 1]);
            own = fmaxf(own, __shfl_xor_sync(~0u, own, 1));
            own = fmaxf(own, __shfl_xor_sync(~0u, own, 2));
            if (t == 0) shared.most[quarter][half + g + 8 * i] = own;
        }
        __syncthreads();
        float correction[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float now = most[i];
#pragma unroll
            for (int q = 0; q < QUARTERS; ++q) now = fmaxf(now, shared.most[q][half + g + 8 * i]);
            const float subtracted = now == minus_infinity() ? 0.0f : now * factor;  // no key yet: weights are 0, not NaN
            correction[i] = exp2_approx(most[i] * factor - subtracted);
            most[i] = now;
            const float first = exp2_approx(s[2 * i] * factor - subtracted), second = exp2_approx(s[2 * i + 1] * factor - subtracted);
            sum[i] = sum[i] * correction[i] + (first + second);
            if (has_keys)
                *reinterpret_cast<unsigned*>(shared.weights + WeightLayout::at(half + g + 8 * i, quarter * 8 + 2 * t)) =
                    M::pack(first, second);
        }
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) y[n][i] *= correction[i / 2];
        __syncthreads();  // the weights are there
        multiply_values(y, shared.weights, shared.values[stage], half, quarter * COLUMNS);
    }
    let_later_kernels_start();
    wait_copies<0>();  // no thread ends before its copies
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
        sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
        if (t == 0) shared.most[quarter][half + g + 8 * i] = sum[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int query = half + g + 8 * i;
        if (!work.has(p, query)) continue;
        float total = 0.0f;
#pragma unroll
        for (int q = 0; q < QUARTERS; ++q) total += shared.most[q][query];
        const float reference = most[i] * factor;
        if (wide.outputs) {
            const int64_t part = ((int64_t(blockIdx.z) * gridDim.x + blockIdx.x) * wide.splits + blockIdx.y) * QUERIES + query;
            if (quarter == 0 && t == 0) *reinterpret_cast<float2*>(wide.sums + part * 2) = make_float2(reference, total);
            float* to = wide.outputs + part * HEAD_DIM + quarter * COLUMNS + 2 * t;
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; ++n)
                *reinterpret_cast<float2*>(to + 8 * n) = make_float2(y[n][2 * i], y[n][2 * i + 1]);
            continue;
        }
        const float sink = p.sinks ? p.sinks[work.head * p.group + (work.tile * QUERIES + query) % p.group] : minus_infinity();
        const float normalizer = 1.0f / (total + exp2_approx(sink * LOG2_E - reference));
        DATA_T* to = static_cast<DATA_T*>(p.y) + work.offset(p, query, p.y_token, p.y_head) + quarter * COLUMNS + 2 * t;
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n)
            *reinterpret_cast<unsigned*>(to + 8 * n) = M::pack(y[n][2 * i] * normalizer, y[n][2 * i + 1] * normalizer);
    }
}
