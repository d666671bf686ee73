// First kernel of chunked prefill for 16 bits: what prefill_prepare.cu computes in float32, for two value heads of a
// key head at a time.
//
// The two heads share every barrier, and fill a warp where a block of one occupies sixteen lanes.
//
// Macros: DATA_T (16 bits); KEY_SIZE; NORMED; ALIGNED; GROUP_PRODUCTS (1, on sm_90a with KEY_SIZE 64 or 128 and
// ALIGNED: K K^T and Q K^T are products of a whole warpgroup; 0: each warp multiplies the blocks up to the diagonal).
// Grid: as prefill_prepare.cu; warp w has tokens 16w to 16w + 15. A chunk is announced as soon as it is written
// (`waiting`).
#if GROUP_PRODUCTS
#include "common/wgmma.cuh"
#endif
#include "gated_delta_rule/prefill_pair_inverse.cuh"

#if !GROUP_PRODUCTS || defined(__CUDA_ARCH_FEAT_SM90_ALL)

#include "gated_delta_rule/prefill_items.cuh"
#include "gated_delta_rule/prefill_tiles.cuh"

namespace {

constexpr int HEADS = 2;  // at a time
#if GROUP_PRODUCTS
constexpr int PANEL_BYTES = CHUNK * ROW_BYTES, TILE_BYTES = KEY_SIZE / PANEL * PANEL_BYTES, TILE_ALIGNMENT = 1024;
#else
using Tile = TileLayout<DATA_T, KEY_SIZE>;
constexpr int TILE_BYTES = Tile::elements(CHUNK) * sizeof(DATA_T), TILE_ALIGNMENT = 128;
#endif
// Of a multiprocessor; more registers before Hopper, where loads are element by element, and where tiles are so large
// that no more blocks have room.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int BLOCKS_AT_ONCE = 3;
#else
constexpr int BLOCKS_AT_ONCE = ALIGNED && KEY_SIZE <= 128 ? 4 : 3;
#endif
constexpr float NORM_EPSILON = 1e-6f;

using Product = Mma<DATA_T>;
using Prepared = PreparedChunk<__half>;
using Sums = float[CHUNK / 2];

// Factors of a head's products: token i has beta_i k_factor_i and q_factor_i with the decay since the end of the block
// before its own, and token j has k_factor_j with the decay from it to the end of its block or a later one, b.
struct HeadFactors {
    float until[BLOCK * BLOCKS * (BLOCKS - 1) / 2];
    float k_row[CHUNK], q_row[CHUNK];

    __device__ static __forceinline__ int until_block(int b) { return b * (b + 1) / 2 * BLOCK; }
};
struct Factors {
    HeadFactors heads[HEADS];
    float k[CHUNK], q[CHUNK];
};

struct Shared {
    alignas(TILE_ALIGNMENT) unsigned char k[TILE_BYTES];
    alignas(TILE_ALIGNMENT) unsigned char q[TILE_BYTES];
    HeadTriangle triangles[HEADS];
    HeadTokens tokens[HEADS];
    union {
        Factors factors;
        __half scratch[WARPS][BLOCK_ELEMENTS];  // once L is stored
    };
    Items items;
    Item item[2];  // the current one and the next
};

// threadIdx.x, whose products the compiler does not keep from one use to the next.
__device__ __forceinline__ int this_thread() {
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}

// `valid` rows of q or k, zeros below.
__device__ __forceinline__ void load_tile(unsigned char* tile, const DATA_T* from, int64_t row_stride, int valid) {
#if GROUP_PRODUCTS
    constexpr int UNITS = KEY_SIZE / 8, STEP = THREADS / UNITS;
    const int thread = this_thread(), unit = thread % UNITS, first = thread / UNITS;
    const DATA_T* row = from + first * row_stride + unit * 8;
#pragma unroll 4
    for (int i = 0; i < CHUNK / STEP; ++i, row += STEP * row_stride) {
        const bool inside = first + i * STEP < valid;
        copy_async_16(tile + panel_unit<CHUNK>(first + i * STEP, unit), inside ? row : from, inside);
    }
#else
    load_tokens<DATA_T, KEY_SIZE, THREADS, ALIGNED>(reinterpret_cast<DATA_T*>(tile), from, row_stride, valid,
                                                    this_thread());
#endif
}

__device__ __forceinline__ void load_tiles(Shared& shared, const Item& item, const GatedDeltaPrefill& p) {
    load_tile(shared.k, item.first_of(p.k, p.k_row, p.k_token, p.k_head), p.k_token, item.valid);
    load_tile(shared.q, item.first_of(p.q, p.q_row, p.q_token, p.q_head), p.q_token, item.valid);
    commit_copies();
}

// exp2 of the sum of logarithms from token `from` (its own excluded) to token `to`.
__device__ __forceinline__ float decay_between(const HeadTokens& head, int from, int to) {
    return exp2_approx((head.log_decay[to] - head.log_decay[from]) + (head.rest[to] - head.rest[from]));
}

// Products of this warp's 16 tokens with the chunk's.
struct Pairs {
    Sums k_k, q_k;

    // Of the block on the diagonal.
    __device__ static __forceinline__ void own_of(float (&own)[8], const Sums& sums) {
        const int warp = threadIdx.x / 32;
#pragma unroll
        for (int e = 0; e < 8; ++e)
            own[e] = warp < 2 ? (warp == 0 ? sums[e] : sums[8 + e]) : (warp == 2 ? sums[16 + e] : sums[24 + e]);
    }
#if GROUP_PRODUCTS
    __device__ __forceinline__ void multiply_group(const Shared& shared, float (&q_q)[2][4]) {
        const unsigned long long k = operand(shared.k), q = operand(shared.q);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < KEY_SIZE / 16; ++j) {
            const unsigned long long at = j / 4 * (PANEL_BYTES >> 4) + j % 4 * NEXT_16_COLUMNS;
            multiply_rows<DATA_T>(k_k, k + at, k + at, j > 0);
            multiply_rows<DATA_T>(q_k, q + at, k + at, j > 0);
        }
        wgmma_commit();
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        if (NORMED) {
            const int place = panel_unit<CHUNK>(warp * BLOCK + lane % 16, lane / 16);
#pragma unroll
            for (int j = 0; j < KEY_SIZE / 16; ++j) {
                Product::A queries;
                const int at = (place ^ j % 4 * 32) + j / 4 * PANEL_BYTES;
                Product::load_matrices(queries.r, reinterpret_cast<const DATA_T*>(shared.q), at / 2);
#pragma unroll
                for (int n = 0; n < 2; ++n) Product::multiply(q_q[n], queries, Product::b_from_a(queries, n));
            }
        }
        wgmma_wait<0>();
        in_flight(k_k);
        in_flight(q_k);
    }
#else
    // Of later blocks there are zeros.
    __device__ __forceinline__ void multiply_blocks(const Shared& shared, float (&q_q)[2][4]) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const DATA_T *k = reinterpret_cast<const DATA_T*>(shared.k), *q = reinterpret_cast<const DATA_T*>(shared.q);
        float k_blocks[CHUNK / 8][4] = {}, q_blocks[CHUNK / 8][4] = {};
#pragma unroll 4
        for (int c = 0; c < KEY_SIZE; c += Product::K) {
            const Product::A keys = Product::load_a<Tile>(k, warp * BLOCK, c, lane);
            const Product::A queries = Product::load_a<Tile>(q, warp * BLOCK, c, lane);
#pragma unroll
            for (int j = 0; j < BLOCKS; ++j) {
                if (j > warp) break;
                Product::B earlier[2];
                Product::load_b<Tile>(earlier, k, j * BLOCK, c, lane);
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    Product::multiply(k_blocks[2 * j + n], keys, earlier[n]);
                    Product::multiply(q_blocks[2 * j + n], queries, earlier[n]);
                }
            }
#pragma unroll
            for (int n = 0; NORMED && n < 2; ++n) Product::multiply(q_q[n], queries, Product::b_from_a(queries, n));
        }
#pragma unroll
        for (int e = 0; e < CHUNK / 2; ++e) {
            k_k[e] = k_blocks[e / 4][e % 4];
            q_k[e] = q_blocks[e / 4][e % 4];
        }
    }
#endif
    __device__ __forceinline__ void multiply(Shared& shared, float scale) {
        const int lane = threadIdx.x % 32, g = lane / 4, warp = threadIdx.x / 32;
        float q_q[2][4] = {};
#if GROUP_PRODUCTS
        multiply_group(shared, q_q);
#else
        multiply_blocks(shared, q_q);
#endif
        float k_here[8];
        own_of(k_here, k_k);
        // The lane with an element of the diagonal has that row's square.
        if (lane % 4 != g / 2) return;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float k_square = g % 2 ? k_here[6 * half + 1] : k_here[6 * half];
            const float q_square = g % 2 ? q_q[half][2 * half + 1] : q_q[half][2 * half];
            const int i = warp * BLOCK + half * 8 + g;
            shared.factors.k[i] = NORMED ? rsqrtf(k_square + NORM_EPSILON) : 1.0f;
            shared.factors.q[i] = NORMED ? scale * rsqrtf(q_square + NORM_EPSILON) : scale;
        }
    }
    // L of one head to shared memory, and the head's scores to the chunk.
    __device__ __forceinline__ void store(Shared& shared, int head, __half* scores) const {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32, place = lane_place();
        const HeadFactors& factors = shared.factors.heads[head];
        HeadTriangle& triangle = shared.triangles[head];
        float k_row[2], q_row[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            k_row[half] = factors.k_row[warp * BLOCK + half * 8 + g];
            q_row[half] = factors.q_row[warp * BLOCK + half * 8 + g];
        }
#pragma unroll
        for (int j = 0; j + 1 < BLOCKS; ++j) {
            if (j >= warp) break;
            SplitBlock& block = triangle.below[HeadTriangle::index_below(warp, j)];
            float values[2][4], weights[2][4];  // in the order of the four matrices of lane_place()
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const int column = HeadFactors::until_block(warp - 1) + j * BLOCK + n * 8 + 2 * t;
                const float2 until = *reinterpret_cast<const float2*>(factors.until + column);
#pragma unroll
                for (int half = 0; half < 2; ++half)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int from = 8 * j + 4 * n + 2 * half + e;
                        const float factor = e ? until.y : until.x;
                        values[half][2 * n + e] = k_row[half] * (factor * k_k[from]);
                        weights[half][2 * n + e] = q_row[half] * (factor * q_k[from]);
                    }
            }
            Parts parts;
            parts.split(values);
            put_block(block.high, place, parts.high.r);
            put_block(block.low, place, parts.low.r);
            store_scores(triangle.diagonal[warp], scores, weights, j);
        }
        store_own(shared, head, scores);
    }
    // The block on the diagonal, whose decays are taken one by one: their factors might overflow.
    __device__ __forceinline__ void store_own(Shared& shared, int head, __half* scores) const {
        const int thread = this_thread(), g = thread % 32 / 4, t = thread % 4, warp = thread / 32, first = warp * BLOCK;
        const HeadTokens& tokens = shared.tokens[head];
        DiagonalBlock& block = shared.triangles[head].diagonal[warp];
        float k_here[8], q_here[8], below[8], weights[2][4];
        own_of(k_here, k_k);
        own_of(q_here, q_k);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = half * 8 + g;
            const float k_row = tokens.beta[first + i] * shared.factors.k[first + i];
            const float q_row = shared.factors.q[first + i] * (1.0f / INNER_SHARE);
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int j = n * 8 + 2 * t + e, from = 4 * n + 2 * half + e;
                    const float decay = j <= i ? decay_between(tokens, first + j, first + i) : 0.0f;
                    const float decayed = shared.factors.k[first + j] * decay;
                    below[from] = k_row * decayed * k_here[from];
                    weights[half][2 * n + e] = q_row * decayed * q_here[from];
                }
        }
        store_scores(block, scores, weights, warp);
        __syncwarp();
#pragma unroll
        for (int from = 0; from < 8; ++from)
            block.transposed[DiagonalBlock::at(from / 4 * 8 + 2 * t + from % 2, from / 2 % 2 * 8 + g)] = below[from];
    }
    __device__ static __forceinline__ void store_scores(DiagonalBlock& own, __half* scores,
                                                        const float (&weights)[2][4], int j) {
        const int warp = threadIdx.x / 32;
        __half* block = own.scratch[j % 2];
        unsigned matrices[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float(&row)[4] = weights[i / 2];
            matrices[i] = Half::pack(row[i % 2 * 2], row[i % 2 * 2 + 1]);
        }
        put_block(block, lane_place(), matrices);
        __syncwarp();
        store_block(scores, block, warp, j);
    }
};

// The factors of one head's tokens, a thread each, for the products here and, in `chunk`, for the second kernel.
__device__ __forceinline__ void store_factors(Shared& shared, int head, Prepared& chunk) {
    const int j = threadIdx.x % CHUNK, block = j / BLOCK;
    const HeadTokens& tokens = shared.tokens[head];
    HeadFactors& factors = shared.factors.heads[head];
    const float beta = tokens.beta[j], k_factor = shared.factors.k[j], q_factor = shared.factors.q[j];
    const float from_start = exp2_approx(tokens.log_decay[j]), to_end = decay_between(tokens, j, CHUNK - 1);
    const float since_block = block ? decay_between(tokens, block * BLOCK - 1, j) : from_start;
    factors.k_row[j] = beta * k_factor * since_block;
    factors.q_row[j] = q_factor * (1.0f / INNER_SHARE) * since_block;
#pragma unroll
    for (int b = 0; b + 1 < BLOCKS; ++b)
        if (b >= block)
            factors.until[HeadFactors::until_block(b) + j] = k_factor * decay_between(tokens, j, (b + 1) * BLOCK - 1);
    chunk.read[j] = from_start * k_factor;
    chunk.beta[j] = beta * INNER_SHARE;
    chunk.from_start[j] = from_start * q_factor;
    chunk.write[j] = to_end * k_factor * (1.0f / INNER_SHARE);
    if (j == CHUNK - 1) chunk.total = from_start;
}

__device__ __forceinline__ void wait_for_tiles(const Shared&) {
    wait_copies<0>();
#if GROUP_PRODUCTS
    fence_for_wgmma();
#endif
    __syncthreads();
}

// All value heads of an item, whose tiles are in shared memory; those of the item after it come in their place.
__device__ __forceinline__ void prepare(Shared& shared, const GatedDeltaPrefill& p, HeadInputs& inputs,
                                        const Item& item, const Item& later) {
    const int warp = threadIdx.x / 32;
    const int64_t place = int64_t(item.slot) * p.value_heads + item.key_head * p.values_per_key;
    Prepared* chunks = static_cast<Prepared*>(p.chunks) + place;
#pragma unroll 1
    for (int first = 0; first < p.values_per_key; first += HEADS, chunks += HEADS) {
        const int heads = min(HEADS, p.values_per_key - first);
        const bool same = first + HEADS < p.values_per_key;
        if (warp < HEADS) inputs.add_up(shared.tokens[warp]);
        Pairs pairs;
        pairs.multiply(shared, p.scale);
        __syncthreads();
        const int own = threadIdx.x / CHUNK;
        if (own < heads) store_factors(shared, own, chunks[own]);
        __syncthreads();
#pragma unroll 1
        for (int head = 0; head < heads; ++head) pairs.store(shared, head, chunks[head].scores);
        __syncwarp();
        if (!same && later.valid > 0) load_tiles(shared, later, p);
        if (warp < HEADS) (same ? item : later).load_head(inputs, p, same ? first + HEADS + warp : warp);
        invert_diagonal(shared.triangles, warp);
        for (int head = 0; head < heads; ++head)
            store_block(chunks[head].inverse, shared.triangles[head].diagonal[warp].inverse.high, warp, warp);
        __syncthreads();
        // Of each head one warp has the first column, and another one the two after it, which are as much work.
        const int head = warp % HEADS;
        if (head < heads) {
#pragma unroll 1
            for (int j = warp / HEADS; j <= 2 * (warp / HEADS); ++j)
                InverseColumn{shared.triangles[head], j, shared.scratch[warp], chunks[head].inverse}.store();
        }
        __syncthreads();
        if (p.waiting && threadIdx.x < heads) allow_readers(p.waiting + place + first + threadIdx.x, p.readers);
    }
}

}  // namespace

#else
constexpr int BLOCKS_AT_ONCE = 4;
#endif

extern "C" __global__ void __launch_bounds__(128, BLOCKS_AT_ONCE)
gated_delta_rule_prepare_pairs(const __grid_constant__ GatedDeltaPrefill params) {
#if !GROUP_PRODUCTS || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    prepare_items<HEADS>(shared, params);
#endif
}
