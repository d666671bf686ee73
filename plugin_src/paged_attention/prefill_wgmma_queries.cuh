// The tiles of a block of prefill_wgmma.cu in their order, and the way of their queries to shared memory. For its
// macros.
#pragma once

#include "paged_attention/prefill_wgmma_rows.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Finds the weights of ranks that rise; quicker than Bisection where they are near, and with more registers.
class RisingRanks {
    int above, heavier = 0;  // so many tiles, of those found, weigh `above` or more
    int step;                // guess of how far the next weight lies below

   public:
    __device__ __forceinline__ explicit RisingRanks(const PagedAttention& p)
        : above((p.max_blocks * p.block_size + TILE_ROWS) / TILE_KEYS + 2), step(above / 2) {}
    __device__ __forceinline__ bool find(const PagedAttention& p, int rank, int& low, int& high, int& left) {
        low = above;
        for (;; step *= 2) {
            low = max(1, low - step);
            const int count = heavy_tiles(p, low);
            if (count > rank) break;
            above = low, heavier = count;
            if (low == 1) return false;
        }
        while (above - low > 1) {
            const int middle = (low + above) / 2, count = heavy_tiles(p, middle);
            if (count > rank) {
                low = middle;
            } else {
                above = middle, heavier = count;
            }
        }
        step = 1, high = above, left = rank - heavier;
        return true;
    }
};

// The work of a block: tiles of all KV heads, by falling weight, dealt out back and forth.
struct Deal {
    RisingRanks near;
    Bisection any;
    int round = 0;

    __device__ __forceinline__ explicit Deal(const PagedAttention& p) : near(p) {}
    __device__ __forceinline__ Task next(const WgmmaPrefill& prefill) {
        const PagedAttention& p = prefill.call;
        const int turn = round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
        const int index = round++ * gridDim.x + turn, rank = index / p.kv_heads;
        const Tile tile = EARLY_QUERIES ? tile_of_rank(p, rank, near) : tile_of_rank(p, rank, any);
        const int shift = CONVERTED && tile.row >= 0 ? prefill.converted.shift[tile.row] : NOT_CONVERTED;
        return {{tile, index - rank * p.kv_heads}, shift};
    }
};

// ROWS rows of this warp into a tile of TILE rows, from row `first` (a multiple of 8) on; 8 lanes copy 128 bytes of
// one. offset: where each row begins, in elements, or below zero: zeros; CHECKED: there may be such rows.
template <int TILE, int ROWS, bool CHECKED, typename Offset>
__device__ __forceinline__ void load_rows(unsigned char* tile, int first, const DATA_T* source, const Offset& offset) {
    const int lane = threadIdx.x % 32, unit = lane % 8, row = lane / 8;
    unsigned char* const even = tile + panel_unit<TILE>(first + row, unit);
    unsigned char* const odd = tile + panel_unit<TILE>(first + row + 4, unit);
#pragma unroll
    for (int i = 0; i < ROWS / 4; ++i) {
        const long long from = offset(4 * i + row);
        unsigned char* const to = (i % 2 ? odd : even) + i / 2 * (8 * ROW_BYTES);
#pragma unroll
        for (int panel = 0; panel < COLUMNS / PANEL; ++panel) {
            const int column = panel * PANEL + unit * 8;
            const bool inside = (!CHECKED || from >= 0) && column < HEAD_DIM;
            copy_async_16(to + panel * (TILE * ROW_BYTES), source + (inside ? from + column : 0), inside);
        }
    }
}

__device__ __forceinline__ void load_queries(unsigned char* tile, const PagedAttention& p, const Work& work) {
    constexpr int ROWS = TILE_ROWS / 4;
    const int first = threadIdx.x / 32 * ROWS;
    const long long mine = packed_row(p, work, first + threadIdx.x % 32, p.query_token, p.query_head);
    load_rows<TILE_ROWS, ROWS, true>(tile, first, static_cast<const DATA_T*>(p.query),
                                     [&](int row) { return __shfl_sync(~0u, mine, row); });
}

// Queries of a task and what the computing warpgroups are to do with them.
__device__ __forceinline__ void hand_over(Shared& shared, const PagedAttention& p, const Task& task,
                                          RingPlace<QUERY_STAGES>& at) {
    barrier_wait(&shared.queries_empty[at.slot], at.parity ^ 1);
    if (task.work.tile.row >= 0) load_queries(shared.queries[at.slot], p, task.work);
    barrier_arrive_after_copies(&shared.queries_full[at.slot]);
    if (threadIdx.x == 0) {
        shared.work[at.slot] = task.work;
        if (CONVERTED) shared.converted[at.slot] = task.converted();
        barrier_arrive(&shared.queries_full[at.slot]);
    }
    at.advance();
}

#endif
