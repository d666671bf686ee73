// What prefill_wgmma.cu is given, and prefill_convert.cu before it or prefill_mma.cu: the call, and where keys and
// values of e4m3 lie that were converted once for all tiles. For the macros of both.
#pragma once

#include "common/tensor_map.cuh"
#include "paged_attention/params.cuh"

// Keys and values in DATA_T as they lie in shared memory, for the rows of several tiles of queries, which else convert
// each key again: blocks of TILE_KEYS positions of a row, in each a tile for every KV head and in turn keys and values.
struct ConvertedKeys {
    int* shift;   // of each row: from the block of a position in the row to its place here, or NOT_CONVERTED
    void* zeros;  // a part of a tile
    void* tiles;
    int blocks;   // that there is memory for
    // For prefill_mma.cu: seq_lens of the rows that are converted and 0 for the rest, and the other way round.
    int* lengths;
    int* other_lengths;
};

constexpr int NOT_CONVERTED = -1 - 0x7fffffff;

struct WgmmaPrefill {
    PagedAttention call;
    TensorMap* maps;  // with BOXES: of keys and of values, for each block of the grid
    ConvertedKeys converted;
};

#ifdef PLAIN_ROWS
constexpr int COLUMNS = HEAD_DIM;  // of a row of a tile
#else
constexpr int COLUMNS = (HEAD_DIM + PANEL - 1) / PANEL * PANEL;  // of a row in shared memory; past HEAD_DIM: zeros
#endif
constexpr int TILE_BYTES = TILE_KEYS * COLUMNS * 2;
constexpr int PART_KEYS = TILE_KEYS / 4;  // that a warp brings

// The tile of keys, or of values, of a block and a KV head.
__device__ __forceinline__ unsigned char* converted_tile(const ConvertedKeys& converted, const PagedAttention& p,
                                                         int block, int head, bool value) {
    const int64_t tile = (static_cast<int64_t>(block) * p.kv_heads + head) * 2 + value;
    return static_cast<unsigned char*>(converted.tiles) + tile * TILE_BYTES;
}
