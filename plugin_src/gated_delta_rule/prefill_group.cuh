// A warpgroup's 64 columns of one head's state, and of v and o of a chunk, for prefill_groups.cu (sm_90a, 16-bit data).
//
// Everything is transposed, as in prefill_state.cuh: rows are columns of the state, so that a product's accumulators
// are the left operand of the next one. Thread 4g + t of warp w has rows 16w + g and 16w + g + 8; accumulator 4n + i is
// row g + i / 2 * 8 and column 8n + 2t + i % 2, which is a token of u and o, and a key of the state.
//
// Macros: DATA_T, STATE_T, KEY_SIZE (64 or 128), VALUE_SIZE (a multiple of 64), CHANNEL_DECAY (one decay per key
// channel, else one per head).
#pragma once

#include "common/mma.cuh"
#include "common/group_products.cuh"
#include "gated_delta_rule/prefill_column_sizes.cuh"
#include "gated_delta_rule/prefill_params.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace {

constexpr int GROUP_COLUMNS = 64;
constexpr int KEY_STEPS = KEY_SIZE / 16, TOKEN_STEPS = CHUNK / 16;
constexpr int PANEL_BYTES = CHUNK * ROW_BYTES;  // 64 rows of 64 columns
constexpr int KEY_PANELS = KEY_SIZE / PANEL;
static_assert(KEY_SIZE % PANEL == 0 && VALUE_SIZE % GROUP_COLUMNS == 0 && sizeof(DATA_T) == 2,
              "tiles are whole panels");

using Product = Mma<DATA_T>;
using Inner = InnerType<DATA_T>::type;
using Prepared = PreparedChunk<Inner>;
// Keys and queries with decays of channels in them are Inner, and the state is kept at INNER_SHARE of its size.
#if CHANNEL_DECAY
using Key = Inner;
constexpr float STATE_SHARE = INNER_SHARE;
#else
using Key = DATA_T;
constexpr float STATE_SHARE = 1.0f;
#endif
using Sums = float[CHUNK / 2];
using Operand = unsigned[TOKEN_STEPS][4];

// Accumulators of 16 columns as a left operand.
template <typename T>
__device__ __forceinline__ void pack_operand(unsigned (&a)[4], const float* d) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = Mma<T>::pack(d[2 * i], d[2 * i + 1]);
}

// sums[i] += sum over tokens j <= i of from[j] * triangle[i][j], a product for each block of 16 x 16: products in
// flight may share accumulators where these are the same ones.
__device__ __forceinline__ void start_earlier(Sums& sums, const Operand& from, const Inner* triangle) {
#pragma unroll
    for (int j = 0; j < TOKEN_STEPS; ++j)
#pragma unroll
        for (int i = j; i < TOKEN_STEPS; ++i) {
            const int block = Triangle<Inner>::first_block(j) + i - j;
            GroupProduct<Inner, BLOCK>::multiply(sums + i * BLOCK / 2, from[j],
                                                 narrow_operand(triangle + block * BLOCK * BLOCK), 1);
        }
}

// A warp's 16 columns of a [CHUNK][64] tile of v, or of o in its place.
struct WarpTile {
    unsigned char* tile;

    __device__ __forceinline__ explicit WarpTile(unsigned char* tile) : tile(tile) {}

    // Where this lane's row of four 8 x 8 matrices lies: tokens 16 step.., of both halves of the columns.
    __device__ __forceinline__ int place(int step) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        return panel_unit<CHUNK>(step * 16 + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2);
    }
    // v as pairs of tokens, in the layout of accumulators.
    __device__ __forceinline__ void load(Operand& pairs) const {
#pragma unroll
        for (int step = 0; step < TOKEN_STEPS; ++step)
            Product::load_transposed(pairs[step], reinterpret_cast<const DATA_T*>(tile), place(step) / 2);
    }
    __device__ __forceinline__ void store(const Sums& sums) const {
#pragma unroll
        for (int step = 0; step < TOKEN_STEPS; ++step) {
            unsigned pairs[4];
            pack_operand<DATA_T>(pairs, sums + 8 * step);
            store_matrices_transposed(shared_address(tile + place(step)), pairs);
        }
    }
    __device__ static __forceinline__ void store_matrices_transposed(unsigned row, const unsigned (&pairs)[4]) {
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row), "r"(pairs[0]),
                     "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                     : "memory");
    }
};

struct GroupState {
    float value[KEY_SIZE / 2];

    // The largest magnitude of the column of accumulators `first` and `first` + 1 of every four.
    __device__ __forceinline__ float largest(int first) const {
        float found[4] = {};
#pragma unroll
        for (int i = 0; i < KEY_SIZE / 8; ++i)
            found[i % 4] = fmaxf(found[i % 4], fmaxf(fabsf(value[4 * i + first]), fabsf(value[4 * i + first + 1])));
        float largest = fmaxf(fmaxf(found[0], found[1]), fmaxf(found[2], found[3]));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        return fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    }

    // state: of the head, at the group's first column.
    __device__ __forceinline__ void load(const STATE_T* state) {
#pragma unroll
        for (int i = 0; i < KEY_SIZE / 2; ++i) value[i] = STATE_SHARE * to_float(state[place(i)]);
    }
    __device__ __forceinline__ void store(STATE_T* state) const {
#pragma unroll
        for (int i = 0; i < KEY_SIZE / 2; ++i) state[place(i)] = from_float<STATE_T>(value[i] * (1.0f / STATE_SHARE));
    }
    __device__ static __forceinline__ int place(int i) {
        const int lane = threadIdx.x % 32, column = threadIdx.x / 32 % 4 * 16 + lane / 4 + i / 2 % 2 * 8;
        return (i / 4 * 8 + lane % 4 * 2 + i % 2) * VALUE_SIZE + column;
    }
    // Starts sums = rows @ state of a [CHUNK][KEY_SIZE] tile. What sums held before is no operand, as it would be in
    // place.
    __device__ static __forceinline__ void start_read(Sums& sums, const unsigned (&state)[KEY_STEPS][4],
                                                      const void* rows) {
        const unsigned long long first = operand(rows);
        Sums started;
#pragma unroll
        for (int j = 0; j < KEY_STEPS; ++j)
            GroupProduct<Key, CHUNK>::multiply(started, state[j],
                                                  first + j / 4 * (PANEL_BYTES >> 4) + j % 4 * NEXT_16_COLUMNS, j > 0);
        wgmma_commit();
#pragma unroll
        for (int i = 0; i < CHUNK / 2; ++i) sums[i] = started[i];
    }
    // Starts state += k^T @ written.
    __device__ __forceinline__ void start_write(const Operand& written, const void* k) {
        const unsigned long long tokens = operand(k, PANEL_BYTES);
#pragma unroll
        for (int j = 0; j < TOKEN_STEPS; ++j) multiply_columns<Key>(value, written[j], tokens + j * NEXT_16_ROWS);
        wgmma_commit();
    }
};

}  // namespace

#endif
