// First kernel of chunked prefill in float32: products of a chunk's tokens with each other, for all chunks at once.
//
// With G the sums of g within the chunk, k' = k / |k| and q' = scale * q / |q|, for tokens j before i:
//   L_ij = beta_i exp(G_i - G_j) k'_i k'_j,   inverse = (I + L)^-1,
//   scores_ij = exp(G_i - G_j) q'_i k'_j (j = i included),
// so that the second kernel has u = inverse (beta (v - exp(G) k' S)) and o = exp(G) q' S + scores u ("Gated Delta
// Networks", arXiv 2412.06464, section 3.3). A block computes K K^T and Q K^T once for all value heads of its key head.
//
// Macros: DATA_T (float); KEY_SIZE; NORMED; ALIGNED. Grid: any number of blocks, each of which takes every gridDim-th
// chunk of a key head; four warps, of which warp w has tokens 16w to 16w + 15.
#include "common/math.cuh"
#include "gated_delta_rule/prefill_inverse.cuh"
#include "gated_delta_rule/prefill_items.cuh"
#include "gated_delta_rule/prefill_tiles.cuh"

namespace {

constexpr float NORM_EPSILON = 1e-6f;

using Product = Mma<DATA_T>;
using Prepared = PreparedChunk<float>;
using Tile = TileLayout<DATA_T, KEY_SIZE>;

struct Shared {
    alignas(128) DATA_T k[Tile::elements(CHUNK)];
    alignas(128) DATA_T q[Tile::elements(CHUNK)];
    alignas(16) float square[Square::ELEMENTS];
    HeadTokens heads[WARPS];
    float k_factor[CHUNK], q_factor[CHUNK];
    Items items;
    Item item[2];  // the current one and the next
};

// Products of this warp's 16 tokens with all tokens up to them. WARP is a constant where later tokens are to cost
// nothing.
struct Pairs {
    float k_k[CHUNK / 8][4] = {}, q_k[CHUNK / 8][4] = {};

    template <int WARP>
    __device__ __forceinline__ void multiply(Shared& shared, float scale) {
        const int lane = threadIdx.x % 32;
        float q_q[2][4] = {};
#pragma unroll 4
        for (int k = 0; k < KEY_SIZE; k += Product::K) {
            const Product::A keys = Product::load_a<Tile>(shared.k, WARP * BLOCK, k, lane);
            const Product::A queries = Product::load_a<Tile>(shared.q, WARP * BLOCK, k, lane);
#pragma unroll
            for (int j = 0; j <= WARP; ++j) {
                Product::B earlier[2];
                if (j < WARP) Product::load_b<Tile>(earlier, shared.k, j * BLOCK, k, lane);
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    if (j == WARP) earlier[n] = Product::b_from_a(keys, n);
                    Product::multiply(k_k[2 * j + n], keys, earlier[n]);
                    Product::multiply(q_k[2 * j + n], queries, earlier[n]);
                    if (NORMED && j == WARP) Product::multiply(q_q[n], queries, Product::b_from_a(queries, n));
                }
            }
        }
        // The lane with an element of the diagonal has that row's square.
        const int g = lane / 4;
        if (lane % 4 != g / 2) return;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float(&k_row)[4] = k_k[2 * WARP + half], (&q_row)[4] = q_q[half];
            const float k_square = g % 2 ? k_row[2 * half + 1] : k_row[2 * half];
            const float q_square = g % 2 ? q_row[2 * half + 1] : q_row[2 * half];
            const int i = WARP * BLOCK + half * 8 + g;
            shared.k_factor[i] = NORMED ? rsqrtf(k_square + NORM_EPSILON) : 1.0f;
            shared.q_factor[i] = NORMED ? scale * rsqrtf(q_square + NORM_EPSILON) : scale;
        }
    }
    // L of one head to shared memory, with its blocks on the diagonal transposed, and the head's scores to the chunk.
    // Decays from earlier blocks are products of those up to the block and those within it.
    template <int WARP>
    __device__ __forceinline__ void store(Shared& shared, const HeadTokens& head, Prepared& chunk) const {
        constexpr int FIRST = WARP * BLOCK, BEFORE = WARP > 0 ? FIRST - 1 : 0;
        const int lane = threadIdx.x % 32, column = lane % 4 * 2;
        float row_k[2], row_q[2], since_block[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = FIRST + lane / 4 + half * 8;
            row_k[half] = head.beta[i] * shared.k_factor[i];
            row_q[half] = shared.q_factor[i] * (1.0f / INNER_SHARE);
            since_block[half] = decay_between(head, BEFORE, i);
        }
#pragma unroll
        for (int n = 0; n < 2 * WARP; ++n) {
            const int j = n * 8 + column;
            const float until[2] = {shared.k_factor[j] * decay_between(head, j, BEFORE),
                                    shared.k_factor[j + 1] * decay_between(head, j + 1, BEFORE)};
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float first = since_block[half] * until[0], second = since_block[half] * until[1];
                const int i = FIRST + lane / 4 + half * 8;
                *reinterpret_cast<float2*>(shared.square + Square::at(i, j)) =
                    make_float2(row_k[half] * (first * k_k[n][2 * half]),
                                row_k[half] * (second * k_k[n][2 * half + 1]));
                store_scores(chunk, i, j, row_q[half] * (first * q_k[n][2 * half]),
                             row_q[half] * (second * q_k[n][2 * half + 1]));
            }
        }
#pragma unroll
        for (int n = 2 * WARP; n < 2 * WARP + 2; ++n) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int i = FIRST + lane / 4 + half * 8, first = n * 8 + column;
                float scores[2] = {};
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int j = first + e;
                    const float decayed = j <= i ? shared.k_factor[j] * decay_between(head, j, i) : 0.0f;
                    shared.square[Square::at(j, FIRST + i % BLOCK)] = row_k[half] * decayed * k_k[n][2 * half + e];
                    scores[e] = row_q[half] * decayed * q_k[n][2 * half + e];
                }
                store_scores(chunk, i, first, scores[0], scores[1]);
            }
        }
    }
    __device__ static __forceinline__ float decay_between(const HeadTokens& head, int from, int to) {
        return exp2_approx((head.log_decay[to] - head.log_decay[from]) + (head.rest[to] - head.rest[from]));
    }
    __device__ static __forceinline__ void store_scores(Prepared& chunk, int i, int j, float first, float second) {
        *reinterpret_cast<float2*>(chunk.scores + Triangle<float>::at(i, j)) = make_float2(first, second);
    }
};

__device__ __forceinline__ void multiply_pairs(Pairs& pairs, Shared& shared, float scale) {
    switch (threadIdx.x / 32) {
        case 0: return pairs.multiply<0>(shared, scale);
        case 1: return pairs.multiply<1>(shared, scale);
        case 2: return pairs.multiply<2>(shared, scale);
        default: return pairs.multiply<3>(shared, scale);
    }
}

__device__ __forceinline__ void store_pairs(const Pairs& pairs, Shared& shared, const HeadTokens& head,
                                            Prepared& chunk) {
    switch (threadIdx.x / 32) {
        case 0: return pairs.store<0>(shared, head, chunk);
        case 1: return pairs.store<1>(shared, head, chunk);
        case 2: return pairs.store<2>(shared, head, chunk);
        default: return pairs.store<3>(shared, head, chunk);
    }
}

// The inverse without its diagonal, and the factors of tokens.
__device__ __forceinline__ void store_chunk(Prepared& chunk, const Shared& shared, const HeadTokens& head) {
    store_inverse<float, THREADS>(chunk.inverse, shared.square);
    const float total = head.log_decay[CHUNK - 1], total_rest = head.rest[CHUNK - 1];
    if (threadIdx.x < CHUNK) {
        const int j = threadIdx.x;
        const float from_start = exp2_approx(head.log_decay[j]);
        const float to_end = exp2_approx((total - head.log_decay[j]) + (total_rest - head.rest[j]));
        chunk.read[j] = from_start * shared.k_factor[j];
        chunk.beta[j] = head.beta[j] * INNER_SHARE;
        chunk.from_start[j] = from_start * shared.q_factor[j];
        chunk.write[j] = to_end * shared.k_factor[j] * (1.0f / INNER_SHARE);
        if (j == 0) chunk.total = exp2_approx(total);
    }
}

__device__ __forceinline__ void load_tiles(Shared& shared, const Item& item, const GatedDeltaPrefill& p) {
    const DATA_T* k = item.first_of(p.k, p.k_row, p.k_token, p.k_head);
    const DATA_T* q = item.first_of(p.q, p.q_row, p.q_token, p.q_head);
    load_tokens<DATA_T, KEY_SIZE, THREADS, ALIGNED>(shared.k, k, p.k_token, item.valid, threadIdx.x);
    load_tokens<DATA_T, KEY_SIZE, THREADS, ALIGNED>(shared.q, q, p.q_token, item.valid, threadIdx.x);
    commit_copies();
}

__device__ __forceinline__ void wait_for_tiles(const Shared&) {
    wait_copies<0>();
    __syncthreads();
}

// All value heads of an item, whose tiles are in shared memory; those of the item after it come in their place.
__device__ __forceinline__ void prepare(Shared& shared, const GatedDeltaPrefill& p, HeadInputs& inputs,
                                        const Item& item, const Item& later) {
    const int warp = threadIdx.x / 32;
    const int64_t first = int64_t(item.slot) * p.value_heads + item.key_head * p.values_per_key;
    Prepared* chunks = static_cast<Prepared*>(p.chunks) + first;
    Pairs pairs;
    multiply_pairs(pairs, shared, p.scale);
    for (int i = 0; i < p.values_per_key; ++i) {
        // Four heads at a time, one per warp.
        const bool first_of_four = i % WARPS == 0;
        if (first_of_four && i + warp < p.values_per_key) inputs.add_up(shared.heads[warp]);
        __syncthreads();
        if (i == 0 && later.valid > 0) load_tiles(shared, later, p);
        if (first_of_four) {
            const bool same = i + WARPS < p.values_per_key;
            (same ? item : later).load_head(inputs, p, same ? i + WARPS + warp : warp);
        }
        const HeadTokens& tokens = shared.heads[i % WARPS];
        store_pairs(pairs, shared, tokens, chunks[i]);
        invert_triangle(shared.square);
        store_chunk(chunks[i], shared, tokens);
        __syncthreads();  // before the next head overwrites what this one read
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
gated_delta_rule_prepare(const __grid_constant__ GatedDeltaPrefill params) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    prepare_items<WARPS>(shared, params);
}
