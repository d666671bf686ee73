// First kernel of chunked prefill: what a chunk's tokens are to each other, for every chunk at the same time.
//
// With G the sums of g within the chunk, k' = k / |k| and q' = scale * q / |q|, for tokens j before i:
//   L_ij = beta_i exp(G_i - G_j) k'_i k'_j,   inverse = (I + L)^-1,   scores_ij = exp(G_i - G_j) q'_i k'_j (j = i included),
// so that the second kernel has u = inverse (beta (v - exp(G) k' S)) and o = exp(G) q' S + scores u ("Gated Delta Networks",
// arXiv 2412.06464, section 3.3). A block computes K K^T and Q K^T once for all value heads of its key head.
//
// Macros: DATA_T; KEY_SIZE; NORMED; ALIGNED. Grid: x covers the chunks of a row, y the key heads, z the rows; four warps, of
// which warp w has tokens 16w to 16w + 15.
#include "common/launch.cuh"
#include "gated_delta_rule/prefill_inverse.cuh"
#include "gated_delta_rule/prefill_tiles.cuh"

namespace {

constexpr int WARPS = CHUNK / BLOCK;
constexpr int THREADS = 32 * WARPS;
constexpr float NORM_EPSILON = 1e-6f;
constexpr float LOG2_E = 1.44269504088896340736f;
// Decays below are zero in float; sums of larger logarithms would cost the small ones their last bits.
constexpr float LEAST_LOG_DECAY = -256.0f;

using Product = Mma<DATA_T>;
using Inner = InnerType<DATA_T>::type;
using Prepared = PreparedChunk<Inner>;
using Tile = TileLayout<DATA_T, KEY_SIZE>;

// Of one value head. log_decay[j] is the base-2 logarithm of the decay over tokens 0..j, rest[j] what its float left out.
struct HeadTokens {
    float log_decay[CHUNK];
    float rest[CHUNK];
    float beta[CHUNK];
};

struct Shared {
    alignas(128) DATA_T k[Tile::elements(CHUNK)];
    alignas(128) DATA_T q[Tile::elements(CHUNK)];
    alignas(16) float square[Square::ELEMENTS];
    HeadTokens heads[WARPS];
    float k_factor[CHUNK], q_factor[CHUNK];
};

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// By a whole warp, two tokens a lane.
__device__ __forceinline__ void load_head(HeadTokens& to, const float* g, int64_t g_token, const DATA_T* beta, int64_t beta_token,
                                          int valid) {
    const int lane = threadIdx.x % 32;
    double logs[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int j = 2 * lane + i;
        const float decay = j < valid ? g[j * g_token] : 0.0f;
        logs[i] = double(decay < LEAST_LOG_DECAY ? LEAST_LOG_DECAY : decay) * LOG2_E;
        to.beta[j] = j < valid ? to_float(beta[j * beta_token]) : 0.0f;
    }
    double sum = logs[0] + logs[1];
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const double before = __shfl_up_sync(~0u, sum, distance);
        sum += lane >= distance ? before : 0.0;
    }
    const double sums[2] = {sum - logs[1], sum};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float rounded = float(sums[i]);
        to.log_decay[2 * lane + i] = rounded;
        to.rest[2 * lane + i] = float(sums[i] - rounded);
    }
}

// Products of this warp's 16 tokens with all tokens up to them. WARP is a constant where later tokens are to cost nothing.
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
    // L of one head to shared memory, with its blocks on the diagonal transposed, and the head's scores to the chunk. Decays
    // from earlier blocks are products of those up to the block and those within it.
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
                    make_float2(row_k[half] * (first * k_k[n][2 * half]), row_k[half] * (second * k_k[n][2 * half + 1]));
                store_scores(chunk, i, j, row_q[half] * (first * q_k[n][2 * half]), row_q[half] * (second * q_k[n][2 * half + 1]));
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
        *reinterpret_cast<Vector<Inner, 2>*>(chunk.scores + Triangle<Inner>::at(i, j)) = {from_float<Inner>(first),
                                                                                            from_float<Inner>(second)};
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

__device__ __forceinline__ void store_pairs(const Pairs& pairs, Shared& shared, const HeadTokens& head, Prepared& chunk) {
    switch (threadIdx.x / 32) {
        case 0: return pairs.store<0>(shared, head, chunk);
        case 1: return pairs.store<1>(shared, head, chunk);
        case 2: return pairs.store<2>(shared, head, chunk);
        default: return pairs.store<3>(shared, head, chunk);
    }
}

// The inverse without its diagonal, and the factors of tokens.
__device__ __forceinline__ void store_chunk(Prepared& chunk, const Shared& shared, const HeadTokens& head) {
    using Lower = Triangle<Inner>;
    constexpr int UNITS = CHUNK / Lower::UNIT;
    for (int i = threadIdx.x; i < CHUNK * UNITS; i += THREADS) {
        const int row = i / UNITS, column = i % UNITS * Lower::UNIT;
        if (column / BLOCK > row / BLOCK) continue;
        Vector<Inner, Lower::UNIT> values;
        const float4* from = reinterpret_cast<const float4*>(shared.square + Square::at(row, column));
#pragma unroll
        for (int e = 0; e < Lower::UNIT; e += 4) {
            const float4 four = from[e / 4];
            const float floats[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) values.data[e + i] = from_float<Inner>(column + e + i == row ? 0.0f : floats[i]);
        }
        *reinterpret_cast<Vector<Inner, Lower::UNIT>*>(chunk.inverse + Lower::at(row, column)) = values;
    }
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

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, sizeof(DATA_T) == 2 ? 4 : 1)
gated_delta_rule_prepare(const __grid_constant__ GatedDeltaPrefill params) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    wait_for_earlier_kernels();
    const RowView view = row_view(params.rows, blockIdx.z);
    const int chunk = blockIdx.x, key_head = blockIdx.y, warp = threadIdx.x / 32;
    const int valid = min(CHUNK, view.length - chunk * CHUNK);
    if (view.slot < 0 || valid <= 0) return;

    const int64_t token = view.first_token + int64_t(chunk) * CHUNK;
    const DATA_T* k = static_cast<const DATA_T*>(params.k) + view.row * params.k_row + token * params.k_token + key_head * params.k_head;
    const DATA_T* q = static_cast<const DATA_T*>(params.q) + view.row * params.q_row + token * params.q_token + key_head * params.q_head;
    load_tokens<DATA_T, KEY_SIZE, THREADS, ALIGNED>(shared.k, k, params.k_token, valid, threadIdx.x);
    load_tokens<DATA_T, KEY_SIZE, THREADS, ALIGNED>(shared.q, q, params.q_token, valid, threadIdx.x);
    commit_copies();
    const float* g = params.g + view.row * params.g_row + token * params.g_token;
    const DATA_T* beta = static_cast<const DATA_T*>(params.beta) + view.row * params.beta_row + token * params.beta_token;
    const int first_head = key_head * params.values_per_key;
    Prepared* chunks = static_cast<Prepared*>(params.chunks) +
                       (first_chunk_slot(params, view, blockIdx.z) + chunk) * params.value_heads;
    Pairs pairs;
    for (int i = 0; i < params.values_per_key; ++i) {
        // Four heads at a time, one a warp.
        if (i % WARPS == 0 && i + warp < params.values_per_key) {
            const int head = first_head + i + warp;
            load_head(shared.heads[warp], g + head, params.g_token, beta + head, params.beta_token, valid);
        }
        if (i == 0) {
            wait_copies<0>();
            __syncthreads();
            multiply_pairs(pairs, shared, params.scale);
        }
        __syncthreads();
        const HeadTokens& tokens = shared.heads[i % WARPS];
        store_pairs(pairs, shared, tokens, chunks[first_head + i]);
        invert_triangle(shared.square);
        store_chunk(chunks[first_head + i], shared, tokens);
        __syncthreads();  // before the next head overwrites what this one read
    }
    // Not before: blocks of the next kernel would lie on few multiprocessors, those that have room while this one runs.
    let_later_kernels_start();
}
