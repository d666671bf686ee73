// Sixteen columns of a head's state, and of v and o of a chunk, in the accumulators of one warp.
//
// Everything is transposed: rows are columns of the state, so that a product's accumulators are the left operand of the
// next one without leaving their registers. Row r of a warp's 16 is column column_of(r): a thread then has four neighbours
// of v and o of one token, once pairs of tokens are turned into pairs of columns.
//
// Macros: DATA_T, STATE_T, KEY_SIZE, VALUE_SIZE, ALIGNED.
#pragma once

#include "common/mma.cuh"
#include "gated_delta_rule/prefill_params.cuh"

namespace {

constexpr int COLUMNS_OF_WARP = 16;
constexpr int TOKEN_TILES = CHUNK / 8;
constexpr int KEY_TILES = KEY_SIZE / 8;

using Product = Mma<DATA_T>;
using Inner = InnerType<DATA_T>::type;
using InnerProduct = Mma<Inner>;
using Prepared = PreparedChunk<Inner>;
using Tile = TileLayout<DATA_T, KEY_SIZE>;
using Lower = Triangle<Inner>;

// Tokens by columns: tile n has tokens 8n + 2t and 8n + 2t + 1 of columns column_of(g) and column_of(g + 8).
using TokenSums = float[TOKEN_TILES][4];

__device__ __forceinline__ int column_of(int row) { return row % 8 / 2 * 4 + row % 2 + row / 8 * 2; }

// Transposes 8 x 8 elements of 16 bits, one row of two neighbours a lane.
__device__ __forceinline__ unsigned transposed_pairs(unsigned pairs) {
    unsigned turned;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pairs));
    return turned;
}

// Pairs of elements in a register exist in 16 bits only; in float this stands for code that is not reached.
template <typename T>
struct PairType {
    using type = T;
};
template <>
struct PairType<float> {
    using type = __half;
};
using Pair = Mma<PairType<DATA_T>::type>;

constexpr bool PAIRED = sizeof(DATA_T) == 2 && ALIGNED;

// v of a chunk and a warp's columns. Where registers allow, it is loaded before the products whose results it meets.
struct ChunkValues {
    static constexpr bool AHEAD = PAIRED && KEY_SIZE < 256;
    const DATA_T* from;
    int64_t token_stride;
    int valid;
    uint2 words[AHEAD ? TOKEN_TILES : 1];

    // v: at the chunk's first token and the warp's first column.
    __device__ __forceinline__ ChunkValues(const DATA_T* v, int64_t token_stride, int valid)
        : from(v), token_stride(token_stride), valid(valid) {
#pragma unroll
        for (int n = 0; AHEAD && n < TOKEN_TILES; ++n) words[AHEAD ? n : 0] = load_pairs(n);
    }
    // Four neighbouring columns of one token.
    __device__ __forceinline__ uint2 load_pairs(int n) const {
        const int token = n * 8 + threadIdx.x % 32 / 4;
        return token < valid ? *reinterpret_cast<const uint2*>(from + token * token_stride + threadIdx.x % 4 * 4) : make_uint2(0, 0);
    }
    // sums = v of token tile n.
    __device__ __forceinline__ void unpack(int n, float (&sums)[4]) const {
        if constexpr (PAIRED) {
            const uint2 pairs = AHEAD ? words[AHEAD ? n : 0] : load_pairs(n);
            const float2 low = Pair::unpack(transposed_pairs(pairs.x));
            const float2 high = Pair::unpack(transposed_pairs(pairs.y));
            sums[0] = low.x;
            sums[1] = low.y;
            sums[2] = high.x;
            sums[3] = high.y;
        } else {
            const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int token = n * 8 + 2 * t + i % 2;
                sums[i] = token < valid ? to_float(from[token * token_stride + column_of(g + i / 2 * 8)]) : 0.0f;
            }
        }
    }
};

// o: at the chunk's first token and the warp's first column.
__device__ __forceinline__ void store_outputs(DATA_T* o, int64_t token_stride, int valid, const TokenSums& sums) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < TOKEN_TILES; ++n) {
        if constexpr (PAIRED) {
            const unsigned low = transposed_pairs(Pair::pack(sums[n][0], sums[n][1]));
            const unsigned high = transposed_pairs(Pair::pack(sums[n][2], sums[n][3]));
            const int token = n * 8 + g;
            if (token < valid) *reinterpret_cast<uint2*>(o + token * token_stride + 4 * t) = make_uint2(low, high);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int token = n * 8 + 2 * t + i % 2;
                if (token < valid) o[token * token_stride + column_of(g + i / 2 * 8)] = from_float<DATA_T>(sums[n][i]);
            }
        }
    }
}

// sums[token] *= factors[token].
__device__ __forceinline__ void scale_tokens(TokenSums& sums, const float* factors) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < TOKEN_TILES; ++n) {
        const float2 factor = *reinterpret_cast<const float2*>(factors + n * 8 + 2 * t);
        sums[n][0] *= factor.x;
        sums[n][1] *= factor.y;
        sums[n][2] *= factor.x;
        sums[n][3] *= factor.y;
    }
}

// to[i] += sum over tokens j <= i of from[j] * triangle[i][j]. Blocks of 16 tokens go from the last to the first, so that
// `to` and `from` may be the same.
__device__ __forceinline__ void add_earlier(TokenSums& to, const TokenSums& from, const Inner* triangle) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = CHUNK / BLOCK - 1; i >= 0; --i) {
        float sum[2][4];
#pragma unroll
        for (int e = 0; e < 8; ++e) sum[e / 4][e % 4] = to[2 * i + e / 4][e % 4];
#pragma unroll
        for (int k = 0; k < (i + 1) * BLOCK; k += InnerProduct::K) {
            const InnerProduct::A earlier = InnerProduct::a_from_accumulators(from + k / 8);
            InnerProduct::B rows[2];
            InnerProduct::load_b<Lower>(rows, triangle, i * BLOCK, k, lane);
            InnerProduct::multiply(sum[0], earlier, rows[0]);
            InnerProduct::multiply(sum[1], earlier, rows[1]);
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) to[2 * i + e / 4][e % 4] = sum[e / 4][e % 4];
    }
}

// A warp's columns of the state; tile n has keys 8n + 2t and 8n + 2t + 1.
struct StateColumns {
    float value[KEY_TILES][4];

    // state: of the head, at the warp's first column.
    __device__ __forceinline__ void load(const STATE_T* state) {
        each([&](float& element, int at) { element = to_float(state[at]); });
    }
    __device__ __forceinline__ void store(STATE_T* state) {
        each([&](float& element, int at) { state[at] = from_float<STATE_T>(element); });
    }
    template <typename ACCESS>
    __device__ __forceinline__ void each(ACCESS access) {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int n = 0; n < KEY_TILES; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) access(value[n][i], (n * 8 + 2 * t + i % 2) * VALUE_SIZE + column_of(g + i / 2 * 8));
    }
    // k @ state and q @ state of every token.
    __device__ __forceinline__ void read(TokenSums& k_state, TokenSums& q_state, const DATA_T* k, const DATA_T* q) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int n = 0; n < TOKEN_TILES; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) k_state[n][i] = q_state[n][i] = 0.0f;
#pragma unroll
        for (int j = 0; j < KEY_SIZE; j += Product::K) {
            const Product::A state = Product::a_from_accumulators(value + j / 8);
#pragma unroll
            for (int n = 0; n < TOKEN_TILES; n += 2) {
                Product::B keys[2], queries[2];
                Product::load_b<Tile>(keys, k, n * 8, j, lane);
                Product::load_b<Tile>(queries, q, n * 8, j, lane);
                Product::multiply(k_state[n], state, keys[0]);
                Product::multiply(k_state[n + 1], state, keys[1]);
                Product::multiply(q_state[n], state, queries[0]);
                Product::multiply(q_state[n + 1], state, queries[1]);
            }
        }
    }
    // state = total * state + k^T @ written.
    __device__ __forceinline__ void write(const TokenSums& written, const DATA_T* k, float total) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int n = 0; n < KEY_TILES; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) value[n][i] *= total;
#pragma unroll
        for (int j = 0; j < CHUNK; j += Product::K) {
            const Product::A tokens = Product::a_from_accumulators(written + j / 8);
#pragma unroll
            for (int n = 0; n < KEY_TILES; n += 2) {
                Product::B keys[2];
                Product::load_b_transposed<Tile>(keys, k, n * 8, j, lane);
                Product::multiply(value[n], tokens, keys[0]);
                Product::multiply(value[n + 1], tokens, keys[1]);
            }
        }
    }
};

}  // namespace
