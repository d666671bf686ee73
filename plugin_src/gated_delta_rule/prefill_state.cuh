// Sixteen columns of a head's state, and of v and o of a chunk, in the accumulators of one warp.
//
// Everything is transposed: rows are columns of the state, so that a product's accumulators are the left operand of the
// next one without leaving their registers. Row r of a warp's 16 is column column_of(r): a thread then has four
// neighbours of v and o of one token, once pairs of tokens are turned into pairs of columns.
//
// Macros: DATA_T, STATE_T, KEY_SIZE, VALUE_SIZE, ALIGNED, CHANNEL_DECAY (one decay per key channel, else one per head).
#pragma once

#include "common/mma.cuh"
#include "gated_delta_rule/prefill_column_sizes.cuh"
#include "gated_delta_rule/prefill_params.cuh"

namespace {

constexpr int COLUMNS_OF_WARP = 16;
constexpr int TOKEN_TILES = CHUNK / 8;
constexpr int KEY_TILES = KEY_SIZE / 8;

template <bool, typename YES, typename NO>
struct Choice {
    using type = YES;
};
template <typename YES, typename NO>
struct Choice<false, YES, NO> {
    using type = NO;
};

using Inner = InnerType<DATA_T>::type;
using InnerProduct = Mma<Inner>;
using Key = Choice<CHANNEL_DECAY, Inner, DATA_T>::type;  // of k and q, which have decays of key channels in them
using Product = Mma<Key>;
using Tile = TileLayout<Key, KEY_SIZE>;
using Prepared = PreparedChunk<Inner>;
using Channels = PreparedChannels<Inner, Tile::elements(CHUNK), KEY_SIZE>;
using Lower = Triangle<Inner>;
// The state and differences are kept at this share of their size where both meet in one product.
constexpr float STATE_SHARE = CHANNEL_DECAY ? INNER_SHARE : 1.0f;

// Tokens by columns: tile n has tokens 8n + 2t and 8n + 2t + 1 of columns column_of(g) and column_of(g + 8).
using TokenSums = float[TOKEN_TILES][4];

__device__ __forceinline__ int column_of(int row) { return row % 8 / 2 * 4 + row % 2 + row / 8 * 2; }

// Transposes 8 x 8 elements of 16 bits, one row of two neighbours a lane.
__device__ __forceinline__ unsigned transposed_pairs(unsigned pairs) {
    unsigned turned;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pairs));
    return turned;
}

// Pairs of elements in a register exist in 16 bits only; in float this compiles code that is never reached.
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

// The largest key size that leaves registers for the values of a chunk; the compiler needs a few more for these two.
#if __CUDA_ARCH__ == 1000 || __CUDA_ARCH__ == 1100
constexpr int LARGEST_KEY_AHEAD = 128;
#else
constexpr int LARGEST_KEY_AHEAD = 192;
#endif

// v of a chunk and a warp's columns. Where registers allow, it is loaded before the products whose results it meets.
struct ChunkValues {
    static constexpr bool AHEAD = PAIRED && KEY_SIZE <= LARGEST_KEY_AHEAD;
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
        return token < valid ? *reinterpret_cast<const uint2*>(from + token * token_stride + threadIdx.x % 4 * 4)
                             : make_uint2(0, 0);
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

// to[i] += sum over tokens j <= i of from[j] * triangle[i][j]. Blocks of 16 tokens go from the last to the first, so
// that `to` and `from` may be the same.
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

// A left operand of the state, each column brought to its size.
__device__ __forceinline__ Product::A fitted(const ColumnSizes& sizes, const float (*tiles)[4]) {
    float sized[2][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) sized[i / 4][i % 4] = tiles[i / 4][i % 4] * sizes.fit[i % 4 / 2];
    return Product::a_from_accumulators(sized);
}
__device__ __forceinline__ void restore(const ColumnSizes& sizes, TokenSums& sums) {
#pragma unroll
    for (int n = 0; n < TOKEN_TILES; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[n][i] *= sizes.back[i / 2];
}

// A warp's columns of the state; tile n has keys 8n + 2t and 8n + 2t + 1.
struct StateColumns {
    float value[KEY_TILES][4];

    // state: of the head, at the warp's first column.
    __device__ __forceinline__ void load(const STATE_T* state) {
        each([&](float& element, int at) { element = STATE_SHARE * to_float(state[at]); });
    }
    __device__ __forceinline__ void store(STATE_T* state) {
        each([&](float& element, int at) { state[at] = from_float<STATE_T>(element * (1.0f / STATE_SHARE)); });
    }
    template <typename ACCESS>
    __device__ __forceinline__ void each(ACCESS access) {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int n = 0; n < KEY_TILES; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                access(value[n][i], (n * 8 + 2 * t + i % 2) * VALUE_SIZE + column_of(g + i / 2 * 8));
    }
    // k @ state and q @ state of every token. As half, columns of the state are first brought to the same size, so that
    // none is too large, whatever the data.
    __device__ __forceinline__ void read(TokenSums& k_state, TokenSums& q_state, const Key* k, const Key* q) const {
        constexpr bool SIZED = CHANNEL_DECAY && sizeof(Key) == 2;
        const int lane = threadIdx.x % 32;
        const ColumnSizes sizes(SIZED ? largest(0) : 0.0f, SIZED ? largest(2) : 0.0f);
#pragma unroll
        for (int n = 0; n < TOKEN_TILES; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) k_state[n][i] = q_state[n][i] = 0.0f;
#pragma unroll
        for (int j = 0; j < KEY_SIZE; j += Product::K) {
            const Product::A state = SIZED ? fitted(sizes, value + j / 8) : Product::a_from_accumulators(value + j / 8);
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
        if (SIZED) {
            restore(sizes, k_state);
            restore(sizes, q_state);
        }
    }
    // The largest magnitude of the column of elements `first` and `first` + 1 of each tile.
    __device__ __forceinline__ float largest(int first) const {
        float found = 0.0f;
#pragma unroll
        for (int n = 0; n < KEY_TILES; ++n)
            found = fmaxf(found, fmaxf(fabsf(value[n][first]), fabsf(value[n][first + 1])));
        found = fmaxf(found, __shfl_xor_sync(~0u, found, 1));
        return fmaxf(found, __shfl_xor_sync(~0u, found, 2));
    }
    // state = total * state + k^T @ written. total: of the head, or one per key channel.
    __device__ __forceinline__ void write(const TokenSums& written, const Key* k, const float* total) {
        const int lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
        for (int n = 0; n < KEY_TILES; ++n) {
            const float2 factor = CHANNEL_DECAY ? *reinterpret_cast<const float2*>(total + n * 8 + 2 * t)
                                                : make_float2(*total, *total);
#pragma unroll
            for (int i = 0; i < 4; ++i) value[n][i] *= i % 2 ? factor.y : factor.x;
        }
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
