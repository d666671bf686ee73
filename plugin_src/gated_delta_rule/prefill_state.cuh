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

// All blocks of a triangle lie at known distances from the first one, which has row and index. rows, step: of whole
// blocks.
template <typename T>
struct Steps<Triangle<T>> {
    __device__ static __forceinline__ int unit(int row, int index, int rows, int step) {
        using L = Triangle<T>;
        const int i = rows / BLOCK, j = step * L::UNIT / BLOCK;
        return (L::first_block(j) + i - j) * (BLOCK * BLOCK) + L::first_unit(row, index);
    }
};

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
using Tile = SteppedLayout<Key, KEY_SIZE>;
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

// The largest key size that leaves registers for the values of a chunk; the compiler needs a few more from sm_100 on.
#if __CUDA_ARCH__ >= 1000
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
        if (!AHEAD) return;
        const DATA_T* at = v + lane_token() * token_stride + threadIdx.x % 4 * 4;
#pragma unroll
        for (int n = 0; n < TOKEN_TILES; ++n, at += 8 * token_stride) words[AHEAD ? n : 0] = load_pairs(n, at);
    }
    __device__ static __forceinline__ int lane_token() { return threadIdx.x % 32 / 4; }
    // Four neighbouring columns of one token.
    __device__ __forceinline__ uint2 load_pairs(int n, const DATA_T* at) const {
        return n * 8 + lane_token() < valid ? *reinterpret_cast<const uint2*>(at) : make_uint2(0, 0);
    }
    __device__ __forceinline__ uint2 load_pairs(int n) const {
        return load_pairs(n, from + (n * 8 + lane_token()) * token_stride + threadIdx.x % 4 * 4);
    }
    // Tokens 8n + 2t and 8n + 2t + 1 of token tile n, as pairs: of columns column_of(g) and column_of(g + 8).
    __device__ __forceinline__ uint2 pairs(int n) const {
        if constexpr (PAIRED) {
            const uint2 columns = AHEAD ? words[AHEAD ? n : 0] : load_pairs(n);
            return make_uint2(transposed_pairs(columns.x), transposed_pairs(columns.y));
        }
        float values[4];
        load_elements(n, values);
        return make_uint2(Pair::pack(values[0], values[1]), Pair::pack(values[2], values[3]));
    }
    __device__ static __forceinline__ void unpack_pairs(uint2 pairs, float (&sums)[4]) {
        const float2 low = Pair::unpack(pairs.x), high = Pair::unpack(pairs.y);
        sums[0] = low.x;
        sums[1] = low.y;
        sums[2] = high.x;
        sums[3] = high.y;
    }
    __device__ __forceinline__ void load_elements(int n, float (&values)[4]) const {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int token = n * 8 + 2 * t + i % 2;
            values[i] = token < valid ? to_float(from[token * token_stride + column_of(g + i / 2 * 8)]) : 0.0f;
        }
    }
};

// o: at the chunk's first token and the warp's first column.
__device__ __forceinline__ void store_outputs(DATA_T* o, int64_t token_stride, int valid, const TokenSums& sums) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    DATA_T* to = o + g * token_stride + 4 * t;
#pragma unroll
    for (int n = 0; n < TOKEN_TILES; ++n, to += 8 * token_stride) {
        if constexpr (PAIRED) {
            const unsigned low = transposed_pairs(Pair::pack(sums[n][0], sums[n][1]));
            const unsigned high = transposed_pairs(Pair::pack(sums[n][2], sums[n][3]));
            if (n * 8 + g < valid) *reinterpret_cast<uint2*>(to) = make_uint2(low, high);
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

// to[i] += sum over tokens j <= i of from[j] * triangle[i][j]; from(k): the left operand of tokens k and on. Blocks of
// 16 tokens go from the last to the first, so that `from` may be made of `to`.
template <typename FROM>
__device__ __forceinline__ void add_earlier(TokenSums& to, const Inner* triangle, FROM from) {
    constexpr int STEPS = BLOCK / InnerProduct::K;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = CHUNK - BLOCK; j >= 0; j -= BLOCK) {
        InnerProduct::A earlier[STEPS];
#pragma unroll
        for (int k = 0; k < STEPS; ++k) earlier[k] = from(j + k * InnerProduct::K);
#pragma unroll
        for (int i = j; i < CHUNK; i += BLOCK)
#pragma unroll
            for (int k = 0; k < STEPS; ++k) {
                InnerProduct::B rows[2];
                InnerProduct::load_b<Lower>(rows, triangle, i, j + k * InnerProduct::K, lane);
                InnerProduct::multiply(to[i / 8], earlier[k], rows[0]);
                InnerProduct::multiply(to[i / 8 + 1], earlier[k], rows[1]);
            }
    }
}
__device__ __forceinline__ void add_earlier(TokenSums& to, const Inner* triangle, const TokenSums& from) {
    add_earlier(to, triangle, [&](int k) { return InnerProduct::a_from_accumulators(from + k / 8); });
}

// u = beta (v - read * u), for u = k @ state; values(n, v) is to set v to that of token tile n.
template <typename VALUES>
__device__ __forceinline__ void subtract_prediction(TokenSums& u, const Prepared& chunk, VALUES values) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < TOKEN_TILES; ++n) {
        const float2 read = *reinterpret_cast<const float2*>(chunk.read + n * 8 + 2 * t);
        const float2 beta = *reinterpret_cast<const float2*>(chunk.beta + n * 8 + 2 * t);
        float v[4];
        values(n, v);
        u[n][0] = beta.x * (v[0] - read.x * u[n][0]);
        u[n][1] = beta.y * (v[1] - read.y * u[n][1]);
        u[n][2] = beta.x * (v[2] - read.x * u[n][2]);
        u[n][3] = beta.y * (v[3] - read.y * u[n][3]);
    }
}

// A left operand of the state, each column brought to its size.
__device__ __forceinline__ Product::A fitted(const ColumnSizes& sizes, const float (*tiles)[4]) {
    float sized[2][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) sized[i / 4][i % 4] = tiles[i / 4][i % 4] * sizes.fit[i % 4 / 2];
    return Product::a_from_accumulators(sized);
}
__device__ __forceinline__ void restore(const float (&back)[2], TokenSums& sums) {
#pragma unroll
    for (int n = 0; n < TOKEN_TILES; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[n][i] *= back[i / 2];
}

// A warp's columns of the state; tile n has keys 8n + 2t and 8n + 2t + 1.
struct StateColumns {
    float value[KEY_TILES][4];

    // state: of the head, at the warp's first column.
    __device__ __forceinline__ void load(const STATE_T* state) {
        state += first_element();
        each([&](float& element, int at) { element = STATE_SHARE * to_float(state[at]); });
    }
    __device__ __forceinline__ void store(STATE_T* state) {
        state += first_element();
        each([&](float& element, int at) { state[at] = from_float<STATE_T>(element * (1.0f / STATE_SHARE)); });
    }
    // Where this lane's elements begin, which the compiler is not to keep from the loads to the stores.
    __device__ static __forceinline__ int first_element() {
        unsigned lane = threadIdx.x % 32;
        asm volatile("" : "+r"(lane));
        return lane % 4 * 2 * VALUE_SIZE + column_of(lane / 4);
    }
    template <typename ACCESS>
    __device__ __forceinline__ void each(ACCESS access) {
#pragma unroll
        for (int n = 0; n < KEY_TILES; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) access(value[n][i], (n * 8 + i % 2) * VALUE_SIZE + column_of(i / 2 * 8));
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
