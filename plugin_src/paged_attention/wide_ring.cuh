// The ring of tiles in shared memory that holds the latents of a block's positions.
//
// Macros: DATA_T, HEAD_DIM, QUERIES, KEYS, SLOTS, as in wide_heads.cu.
#pragma once

#include "common/async_copy.cuh"
#include "common/mma.cuh"
#include "paged_attention/wide_work.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS;
constexpr int UNITS = HEAD_DIM / 8;                 // of 16 bytes in a row
constexpr int TILE_KEYS = KEYS < 32 ? KEYS : 32;    // positions of a tile
constexpr int TILES = KEYS / TILE_KEYS;             // of a step
static_assert(sizeof(DATA_T) == 2 && UNITS % 8 == 0, "rows of an odd number of units begin in different banks");
static_assert(SLOTS >= 2 * TILES, "a step's tiles are copied during the step before");

// Rows in one piece each, of which neighbours begin in different banks.
struct Layout {
    static constexpr int PITCH = HEAD_DIM + 8;

    __host__ __device__ static constexpr int elements(int rows) { return rows * PITCH; }
    __device__ static __forceinline__ int unit(int row, int index) { return row * PITCH + index * 8; }
};

using Slots = DATA_T[SLOTS][Layout::elements(TILE_KEYS)];

// Copies tiles of TILE_KEYS positions one after another to the slots, from the first to the last of all steps. A warp
// copies ROWS positions of each tile, LANES of its lanes one of them. Every tile is a group of copies, which is empty
// past the end.
struct Ring {
    static constexpr int ROWS = TILE_KEYS / WARPS, LANES = 32 / ROWS;
    int64_t offset;          // of what the lane copies first of the next tile; negative: none, zeros are stored
    int position, slot = 0;  // of the lane's row of the next tile, and the tile's slot

    __device__ __forceinline__ Ring(const PagedAttention& p, const Work& work) : position(work.begin + row()) {
        find(p, work);
    }
    // Starts the copies of the next `tiles` tiles.
    __device__ __forceinline__ void copy(Slots& slots, const PagedAttention& p, const Work& work, int tiles) {
        for (int i = 0; i < tiles; ++i) {
            // Every tile of a step is written, also those past the end.
            const bool used = position - row() < work.end + KEYS - TILE_KEYS;
            if (used) copy_row(slots[slot], static_cast<const DATA_T*>(p.kv_pool));
            commit_copies();
            position += TILE_KEYS;
            find(p, work);  // on its way until that tile is copied
            slot = slot + 1 == SLOTS ? 0 : slot + 1;
        }
    }

  private:
    __device__ static __forceinline__ int row() { return threadIdx.x / LANES; }
    __device__ static __forceinline__ int unit() { return threadIdx.x % LANES; }

    __device__ __forceinline__ void find(const PagedAttention& p, const Work& work) {
        offset = -1;
        if (position >= work.end) return;
        const unsigned index = static_cast<unsigned>(position) / static_cast<unsigned>(p.block_size);
        const int block = p.block_table[work.row * p.table_row + index], in_block = position - index * p.block_size;
        const int64_t at = block * p.pool_block + in_block * p.pool_slot + work.head * p.pool_head;
        offset = block < 0 ? -1 : at + unit() * 8;
    }
    __device__ __forceinline__ void copy_row(DATA_T* tile, const DATA_T* pool) const {
        DATA_T* const to = tile + Layout::unit(row(), unit());
        const DATA_T* const from = pool + (offset < 0 ? 0 : offset);
#pragma unroll
        for (int i = 0; i < UNITS; i += LANES)
            if (i + LANES <= UNITS || i + unit() < UNITS) copy_async_16(to + i * 8, from + i * 8, offset >= 0);
    }
};
