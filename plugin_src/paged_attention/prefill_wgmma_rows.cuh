// What a computing warpgroup of prefill_wgmma.cu does with its 64 rows of a tile, and the shared memory. For its
// macros.
#pragma once

#include "common/access.cuh"
#include "common/mbarrier.cuh"
#include "common/mma.cuh"
#include "common/wgmma.cuh"
#include "paged_attention/prefill_cache.cuh"
#include "paged_attention/prefill_softmax.cuh"
#include "paged_attention/prefill_tiles.cuh"
#include "paged_attention/prefill_wgmma_params.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Queries of the next tile come to a second buffer while keys of this one come. Slower with boxes, whose rows are long.
constexpr bool EARLY_QUERIES = !BOXES && QUERY_STAGES > 1;
constexpr int GROUP_ROWS = 64, GROUPS = TILE_ROWS / GROUP_ROWS;

// What the block computes at a time. shift: of the row in ConvertedKeys.
struct Task {
    Work work;
    int shift;

    __device__ __forceinline__ bool converted() const { return CONVERTED && shift != NOT_CONVERTED; }
};

struct Shared {
    unsigned char queries[QUERY_STAGES][TILE_ROWS * COLUMNS * 2];
    unsigned char keys[STAGES][TILE_BYTES];
    unsigned char values[STAGES][TILE_BYTES];
    unsigned char maps[2][sizeof(TensorMap)];  // of keys and of values, while they are made
    uint64_t queries_full[QUERY_STAGES], queries_empty[QUERY_STAGES];
    uint64_t keys_full[STAGES], keys_empty[STAGES];
    uint64_t values_full[STAGES], values_empty[STAGES];
    Work work[QUERY_STAGES];  // of the queries; none left: no row
    bool converted[QUERY_STAGES];

    __device__ __forceinline__ void init_barriers() {
        for (int s = 0; s < QUERY_STAGES; ++s) {
            barrier_init(&queries_full[s], 128 + 1);  // copies of each producing thread, and the work
            barrier_init(&queries_empty[s], 128 * GROUPS);  // every thread has read the work
        }
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(&keys_full[s], 128);
            barrier_init(&keys_empty[s], 4 * GROUPS);
            barrier_init(&values_full[s], 128);
            barrier_init(&values_empty[s], 4 * GROUPS);
        }
    }
};

// written: whether threads wrote a part of the tile; the copy engine needs no fence.
__device__ __forceinline__ void wait_for_tile(uint64_t* full, const RingPlace<STAGES>& at, bool written) {
    barrier_wait(full, at.parity);
    if (written) fence_for_wgmma();
}

// Tells the compiler that products in flight read the fragments.
template <int N>
__device__ __forceinline__ void in_flight(unsigned (&a)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
}

// s = Q K^T of 64 rows.
__device__ __forceinline__ void start_scores(float (&s)[TILE_KEYS / 2], unsigned long long queries,
                                             const unsigned char* tile) {
    const unsigned long long keys = operand(tile);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < (HEAD_DIM + 15) / 16; ++k) {
        const unsigned long long column = k % 4 * NEXT_16_COLUMNS;
        multiply_rows<DATA_T>(s, queries + k / 4 * (TILE_ROWS * ROW_BYTES >> 4) + column,
                              keys + k / 4 * (TILE_KEYS * ROW_BYTES >> 4) + column, k != 0);
    }
    wgmma_commit();
}

// y += weights V.
__device__ __forceinline__ void start_outputs(float (&y)[COLUMNS / 2], const unsigned (&weights)[TILE_KEYS / 16][4],
                                              const unsigned char* tile) {
    constexpr int PANEL_BYTES = TILE_KEYS * ROW_BYTES, WIDE = 128;  // columns of one product
    const unsigned long long values = operand(tile, PANEL_BYTES);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < TILE_KEYS / 16; ++k) {
#pragma unroll
        for (int column = 0; column + WIDE <= COLUMNS; column += WIDE) {
            multiply_columns<DATA_T>(*reinterpret_cast<float(*)[64]>(y + column / 2), weights[k],
                                     values + k * NEXT_16_ROWS + column / PANEL * (PANEL_BYTES >> 4));
        }
        if constexpr (COLUMNS % WIDE != 0) {
            constexpr int LAST = COLUMNS - PANEL;
            multiply_columns<DATA_T>(*reinterpret_cast<float(*)[32]>(y + LAST / 2), weights[k],
                                     values + k * NEXT_16_ROWS + LAST / PANEL * (PANEL_BYTES >> 4));
        }
    }
    wgmma_commit();
}

// Accumulators of scores as left operands.
__device__ __forceinline__ void round_weights(unsigned (&weights)[TILE_KEYS / 16][4], const float (&s)[TILE_KEYS / 2]) {
#pragma unroll
    for (int i = 0; i < TILE_KEYS / 4; ++i) weights[i / 4][i % 4] = Mma<DATA_T>::pack(s[2 * i], s[2 * i + 1]);
}

struct GroupRows {
    float y[COLUMNS / 2];
    RunningSoftmax softmax;
    int position[2];                  // of the tokens of this thread's rows
    int row;                          // of the tile, the first of this thread's
    int first_for_all, last_for_all;  // positions that every row of the warp sees

    __device__ __forceinline__ GroupRows(const PagedAttention& p, const Work& work, int first_row) {
        const int warp_row = first_row + threadIdx.x / 32 % 4 * 16, from = work.tile.first + warp_row;
        row = warp_row + threadIdx.x % 32 / 4;
        softmax.clear();
        position[0] = work.tile.cached + (work.tile.first + row) / p.group;
        position[1] = work.tile.cached + (work.tile.first + row + 8) / p.group;
        last_for_all = work.tile.cached + from / p.group;
        const int last = work.tile.cached + (from + 15) / p.group;
        first_for_all = p.sliding_window > 0 ? last - p.sliding_window + 1 : 0;
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) y[i] = 0.0f;
    }
    // Scores of the block of keys that begins at `key` become weights. Whether outputs so far must be corrected.
    __device__ __forceinline__ bool weigh(float (&s)[TILE_KEYS / 2], float (&correction)[2], const PagedAttention& p,
                                          int key, float factor) {
        if constexpr (SOFTCAP) bound_scores<false>(s, p);
        if (key < first_for_all || key + TILE_KEYS - 1 > last_for_all) hide_scores(s, position, key, visible_span(p));
        const bool corrected = softmax.follow(s, correction, factor);
        softmax.weigh(s, factor);
        return corrected;
    }
    __device__ __forceinline__ void correct(const float (&correction)[2]) {
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) y[i] *= correction[i / 2 % 2];
    }
    // Four lanes that hold pairs of the same row exchange them, so that each stores 16 bytes.
    __device__ __forceinline__ void store(const PagedAttention& p, const Work& work, float factor) {
        const int t = threadIdx.x % 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int head = work.head * p.group + (work.tile.first + row + 8 * half) % p.group;
            const float normalizer = softmax.normalizer(half, factor, p.sinks ? p.sinks[head] : minus_infinity());
            const long long to = packed_row(p, work, row + 8 * half, p.y_token, p.y_head);
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; n += 4) {
                unsigned pair[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float* from = y + 4 * (n + i) + 2 * half;
                    pair[i] = Mma<DATA_T>::pack(from[0] * normalizer, from[1] * normalizer);
                }
                transpose_of_four_lanes(pair);
                const int column = 8 * (n + t);
                if (to >= 0 && column < HEAD_DIM) {
                    *reinterpret_cast<uint4*>(static_cast<DATA_T*>(p.y) + to + column) =
                        make_uint4(pair[0], pair[1], pair[2], pair[3]);
                }
            }
        }
    }

private:
    // word[j] of lane i becomes word[i] of lane j.
    __device__ static __forceinline__ void transpose_of_four_lanes(unsigned (&word)[4]) {
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
            const bool upper = threadIdx.x & step;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (i & step) continue;
                const unsigned other = __shfl_xor_sync(~0u, upper ? word[i] : word[i + step], step);
                word[i] = upper ? other : word[i];
                word[i + step] = upper ? word[i + step] : other;
            }
        }
    }
};

#endif
