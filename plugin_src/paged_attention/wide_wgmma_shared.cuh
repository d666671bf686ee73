// The shared memory of wide_wgmma.cu, its barriers, and the warpgroup that fills it. Macros: as there.
#pragma once

#include "common/mbarrier.cuh"
#include "common/wgmma.cuh"
#include "paged_attention/wide_work.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int PANELS = HEAD_DIM / PANEL;
constexpr int KEY_PANEL = KEYS * ROW_BYTES, QUERY_PANEL = QUERIES * ROW_BYTES;  // bytes of a panel
constexpr int SLOTS = 2, HALF = KEYS / 2;           // steps in shared memory; keys that arrive and leave together
constexpr int WEIGHTS = 2;                          // tiles of weights
constexpr int ALL_WARPS = 4;                        // of a warpgroup
static_assert(sizeof(DATA_T) == 2 && HEAD_DIM % PANEL == 0 && KEYS == 64,
              "whole panels; weights of a query are one row");

struct Shared {
    unsigned char keys[SLOTS][PANELS * KEY_PANEL];
    unsigned char queries[PANELS * QUERY_PANEL];
    unsigned char weights[WEIGHTS][QUERY_PANEL];  // [query][key]
    float corrections[WEIGHTS][QUERIES];          // of sums so far
    float most[ALL_WARPS][QUERIES];               // scores; in the end sums of weights
    float normalizers[QUERIES];
    int corrected[WEIGHTS];                       // whether any correction is not 1
    uint64_t keys_full[2 * SLOTS], keys_empty[2 * SLOTS];
    uint64_t weights_full[WEIGHTS], weights_empty[WEIGHTS];
    uint64_t queries_full;

    __device__ __forceinline__ void init_barriers() {
        for (int i = 0; i < 2 * SLOTS; ++i) {
            barrier_init(&keys_full[i], 128);
            barrier_init(&keys_empty[i], 2 * ALL_WARPS);
        }
        for (int i = 0; i < WEIGHTS; ++i) {
            barrier_init(&weights_full[i], ALL_WARPS);
            barrier_init(&weights_empty[i], 2 * ALL_WARPS);
        }
        barrier_init(&queries_full, 128);
    }
};

// Waits for both halves of a step's keys.
__device__ __forceinline__ void wait_for_keys(Shared& shared, const RingPlace<SLOTS>& at) {
    barrier_wait(&shared.keys_full[2 * at.slot], at.parity);
    barrier_wait(&shared.keys_full[2 * at.slot + 1], at.parity);
    fence_for_wgmma();
}

// Copies the queries and then all keys, zeros where there are none: 8 lanes a piece of 128 bytes, 16 rows at a time.
__device__ __forceinline__ void produce(Shared& shared, const PagedAttention& p, const Work& work) {
    const int unit = threadIdx.x % 8, first = threadIdx.x % 128 / 8;
    const int place = first * ROW_BYTES + (unit ^ (first & 7)) * 16;
    const DATA_T* query = static_cast<const DATA_T*>(p.query) + unit * 8;
    const DATA_T* pool = static_cast<const DATA_T*>(p.kv_pool) + work.head * p.pool_head + unit * 8;
    // Where the key of a position begins; negative: there is none.
    const auto find = [&](int position) -> int64_t {
        if (position >= work.end) return -1;
        const int block = p.block_table[work.row * p.table_row + position / p.block_size];
        return block < 0 ? -1 : block * p.pool_block + position % p.block_size * p.pool_slot;
    };
    int64_t next[HALF / 16];
#pragma unroll
    for (int i = 0; i < HALF / 16; ++i) next[i] = find(work.begin + first + 16 * i);
#pragma unroll 1
    for (int row = first; row < QUERIES; row += 16) {
        const bool valid = work.has(p, row);
        const int64_t from = valid ? work.offset(p, row, p.query_token, p.query_head) : 0;
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel)
            copy_async_16(shared.queries + panel * QUERY_PANEL + place + (row - first) * ROW_BYTES,
                          query + from + panel * PANEL, valid);
    }
    barrier_arrive_after_copies(&shared.queries_full);
    const int halves = (work.end - work.begin + KEYS - 1) / KEYS * 2;
    RingPlace<2 * SLOTS> at;
#pragma unroll 1
    for (int half = 1; half <= halves; ++half, at.advance()) {
        int64_t own[HALF / 16];
#pragma unroll
        for (int i = 0; i < HALF / 16; ++i) {
            own[i] = next[i];
            next[i] = find(work.begin + half * HALF + first + 16 * i);  // on its way while keys are copied
        }
        barrier_wait(&shared.keys_empty[at.slot], at.parity ^ 1);
        unsigned char* to = shared.keys[at.slot / 2] + at.slot % 2 * HALF * ROW_BYTES + place;
#pragma unroll
        for (int i = 0; i < HALF / 16; ++i) {
            const bool valid = own[i] >= 0;
            const DATA_T* from = pool + (valid ? own[i] : 0);
#pragma unroll
            for (int panel = 0; panel < PANELS; ++panel)
                copy_async_16(to + panel * KEY_PANEL + 16 * i * ROW_BYTES, from + panel * PANEL, valid);
        }
        barrier_arrive_after_copies(&shared.keys_full[at.slot]);
    }
    commit_copies();
    wait_copies<0>();  // no thread ends before its copies
}

#endif
