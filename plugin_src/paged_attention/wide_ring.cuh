// The ring of tiles in shared memory that holds the latents of a block's positions.
//
// Macros: DATA_T, HEAD_DIM, QUERIES, KEYS, SLOTS, as in wide_heads.cu.
#pragma once

#include "common/bulk_copy.cuh"
#include "common/mma.cuh"
#include "paged_attention/wide_work.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS;
constexpr int UNITS = HEAD_DIM / 8;                 // of 16 bytes in a row
constexpr int TILE_KEYS = KEYS < 32 ? KEYS : 32;    // positions of a tile
constexpr int TILES = KEYS / TILE_KEYS;             // of a step
static_assert(sizeof(DATA_T) == 2 && UNITS % 8 == 0, "rows of an odd number of units begin in different banks");
static_assert(SLOTS >= 2 * TILES, "a step's tiles are copied during the step before");

// Rows in one piece each, as bulk copies write them.
struct Layout {
    static constexpr int PITCH = HEAD_DIM + 8;

    __host__ __device__ static constexpr int elements(int rows) { return rows * PITCH; }
    __device__ static __forceinline__ int unit(int row, int index) { return row * PITCH + index * 8; }
};

struct Slots {
    alignas(128) DATA_T tiles[SLOTS][Layout::elements(TILE_KEYS)];
    alignas(8) uint64_t arrived[SLOTS];
};

// Copies tiles of TILE_KEYS positions one after another to the slots, from the first to the last of all steps. Tile t
// is copied by warp t % WARPS, a lane of which knows the place of each row.
struct Ring {
    int64_t offset;             // of the lane's row of the warp's next tile; negative: none, zeros are stored
    int next = 0, slot = 0;     // the tile that is copied next, and its slot
    int count;

    __device__ __forceinline__ Ring(const PagedAttention& p, const Work& work)
        : count((work.end - work.begin + KEYS - 1) / KEYS * TILES) {
        find(p, work, threadIdx.x / 32);
    }
    // By one thread, before any other uses the slots.
    __device__ static __forceinline__ void start(Slots& slots) {
#if __CUDA_ARCH__ >= 900
        for (uint64_t& barrier : slots.arrived) barrier_init(&barrier, 1);
        barriers_publish();
#else
        for (uint64_t& barrier : slots.arrived) barrier_init(&barrier, 32);
#endif
    }
    // Starts the copies of the next `tiles` tiles, up to the last one.
    __device__ __forceinline__ void copy(Slots& slots, const PagedAttention& p, const Work& work, int tiles) {
        for (int i = 0; i < tiles && next < count; ++i, ++next) {
            if (next % WARPS == threadIdx.x / 32) {
                copy_tile(slots.tiles[slot], &slots.arrived[slot], static_cast<const DATA_T*>(p.kv_pool));
                find(p, work, next + WARPS);
            }
            slot = slot + 1 == SLOTS ? 0 : slot + 1;
        }
    }

  private:
    __device__ __forceinline__ void find(const PagedAttention& p, const Work& work, int tile) {
        const int row = threadIdx.x % 32, position = work.begin + tile * TILE_KEYS + row;
        offset = -1;
        if (row >= TILE_KEYS || position >= work.end) return;
        const int block = p.block_table[work.row * p.table_row + position / p.block_size];
        if (block >= 0) offset = block * p.pool_block + position % p.block_size * p.pool_slot + work.head * p.pool_head;
    }
    __device__ __forceinline__ void copy_tile(DATA_T* tile, uint64_t* arrived, const DATA_T* pool) const {
        const int lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
        const unsigned valid = __ballot_sync(~0u, offset >= 0);
        if (offset < 0 && lane < TILE_KEYS) {
            for (int unit = 0; unit < UNITS; ++unit)
                *reinterpret_cast<uint4*>(tile + Layout::unit(lane, unit)) = make_uint4(0, 0, 0, 0);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive_expecting(arrived, __popc(valid) * HEAD_DIM * int(sizeof(DATA_T)));
        __syncwarp();
        if (offset >= 0)
            copy_bulk(tile + Layout::unit(lane, 0), pool + offset, HEAD_DIM * int(sizeof(DATA_T)), arrived);
#else
        for (int row = 0; row < TILE_KEYS; ++row) {
            const int64_t from = __shfl_sync(~0u, offset, row);
#pragma unroll
            for (int unit = lane; unit < UNITS; unit += 32)
                copy_async_16(tile + Layout::unit(row, unit), pool + (from < 0 ? 0 : from) + unit * 8, from >= 0);
        }
        barrier_arrive_after_copies(arrived);
#endif
    }
};
