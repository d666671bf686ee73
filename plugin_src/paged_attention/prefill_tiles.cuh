// Which queries a block of the ragged prefill kernels works on, found without the host knowing any length.
//
// The queries of one row and one KV head are a matrix of packed rows: packed row `token * group + i` is query head i of
// the head's group at the row's new token `token`. A tile is TILE_ROWS packed rows, so that a key is read once for all
// query heads of its group. Tiles of all rows are ordered by the blocks of TILE_KEYS keys that they read, the heaviest
// first. TILE_ROWS and TILE_KEYS are macros.
#pragma once

#include "paged_attention/params.cuh"

// A tile, resolved. row < 0: there is none.
struct Tile {
    int row;
    int first;        // packed row that the tile begins with
    int tokens;       // new tokens of the row
    int first_token;  // of them in the packed query, query_start_loc[row]
    int cached;       // position of the first new token
};

// What a block computes at a time: a tile of queries of one KV head.
struct Work {
    Tile tile;
    int head;
};

// The new tokens of one row and their tiles. Rows with one new token belong to another kernel; padding rows are
// skipped.
struct RowTiles {
    int first_token, tokens, cached, tiles;

    __device__ __forceinline__ RowTiles(const PagedAttention& p, int row) {
        first_token = tokens = cached = tiles = 0;
        if (row >= p.rows) return;
        first_token = p.query_start_loc[row];
        const int count = p.query_start_loc[row + 1] - first_token, length = p.seq_lens[row];
        if (count <= 1 || length < count) return;
        tokens = count;
        cached = length - count;
        tiles = (tokens * p.group + TILE_ROWS - 1) / TILE_ROWS;
    }
    // Tiles that read fewer than `blocks` blocks of TILE_KEYS keys, counting the last tile as if it were full; without
    // a sliding window, which makes all tiles alike.
    __device__ __forceinline__ int lighter(int blocks, int group) const {
        // The first token that reads `blocks` blocks.
        const int token = min(max(0, (blocks - 1) * TILE_KEYS - cached), tokens + TILE_ROWS);
        return min(tiles, token * group / TILE_ROWS);
    }
};

// Tiles of all rows that read `blocks` blocks or more; called by whole warps.
__device__ __forceinline__ int heavy_tiles(const PagedAttention& p, int blocks) {
    int count = 0;
    for (int row = threadIdx.x % 32; row < p.rows; row += 32) {
        const RowTiles tiles(p, row);
        count += tiles.tiles - tiles.lighter(blocks, p.group);
    }
    return __reduce_add_sync(~0u, count);
}

// Finds the weight of a rank by bisection of all: more than `rank` tiles read `low` blocks or more, which are fewer
// than `high`. left: tiles of this weight before that of the rank. False where there are no more tiles.
struct Bisection {
    __device__ __forceinline__ bool find(const PagedAttention& p, int rank, int& low, int& high, int& left) const {
        if (heavy_tiles(p, 1) <= rank) return false;
        low = 1, high = (p.max_blocks * p.block_size + TILE_ROWS) / TILE_KEYS + 2;
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            const bool above = heavy_tiles(p, middle) > rank;
            low = above ? middle : low;
            high = above ? high : middle;
        }
        left = rank - heavy_tiles(p, high);
        return true;
    }
};

// The tile of this rank in the order of weight; called by whole warps.
template <typename Search>
__device__ __forceinline__ Tile tile_of_rank(const PagedAttention& p, int rank, Search& search) {
    Tile tile = {-1, 0, 0, 0, 0};
    int low, high, left;
    if (!search.find(p, rank, low, high, left)) return tile;
    const int lane = threadIdx.x % 32;
    for (int begin = 0; begin < p.rows; begin += 32) {
        const RowTiles tiles(p, begin + lane);
        const int lighter = tiles.lighter(low, p.group), count = tiles.lighter(high, p.group) - lighter;
        int until = count;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int before = __shfl_up_sync(~0u, until, step);
            until += lane >= step ? before : 0;
        }
        const unsigned owners = __ballot_sync(~0u, left < until);
        if (owners != 0) {
            const int owner = __ffs(owners) - 1;
            tile.row = begin + owner;
            tile.first = __shfl_sync(~0u, lighter + left - (until - count), owner) * TILE_ROWS;
            tile.tokens = __shfl_sync(~0u, tiles.tokens, owner);
            tile.first_token = __shfl_sync(~0u, tiles.first_token, owner);
            tile.cached = __shfl_sync(~0u, tiles.cached, owner);
            return tile;
        }
        left -= __shfl_sync(~0u, until, 31);
    }
    return tile;
}

// The positions that a tile reads: those that its first token sees with the sliding window, to that of its last token.
struct KeyRange {
    int begin, end;

    KeyRange() = default;
    __device__ __forceinline__ KeyRange(const PagedAttention& p, const Tile& tile) {
        const int first = tile.first / p.group, last = min(tile.tokens - 1, (tile.first + TILE_ROWS - 1) / p.group);
        begin = p.sliding_window > 0 ? max(0, tile.cached + first - p.sliding_window + 1) : 0;
        end = tile.cached + last + 1;
    }
};

// The block of the pool that a position lies in; -1 where the position is not read.
__device__ __forceinline__ int pool_block(const PagedAttention& p, const Tile& tile, const KeyRange& range,
                                          int position) {
    if (position < range.begin || position >= range.end) return -1;
    return p.block_table[tile.row * p.table_row + position / p.block_size];
}

// Where the key of a position in this block begins in the pool, in units of UNIT elements, for KV head 0; -1 without a
// block.
template <int UNIT>
__device__ __forceinline__ int key_unit(const PagedAttention& p, int block, int position) {
    if (block < 0) return -1;
    return static_cast<int>((block * p.pool_block + position % p.block_size * p.pool_slot) / UNIT);
}

// Place of row `m` of the tile in a [token][head][head_dim] tensor, in elements; -1 past the last token.
__device__ __forceinline__ long long packed_row(const PagedAttention& p, const Work& work, int m, int64_t token_stride,
                                                int64_t head_stride) {
    const int index = work.tile.first + m, token = index / p.group;
    if (token >= work.tile.tokens) return -1;
    return (work.tile.first_token + token) * token_stride +
           (work.head * p.group + index - token * p.group) * head_stride;
}
