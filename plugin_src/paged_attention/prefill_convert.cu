// Converts keys and values of e4m3 before prefill_wgmma.cu or prefill_mma.cu, once for all tiles of queries of a row. A
// warp takes 16 positions of a row, which lie in one page, and their keys or their values of one KV head.
//
// Macros: those of prefill_wgmma.cu; PLAIN_ROWS where rows of a tile are not cut into panels, for prefill_mma.cu.
#include "common/launch.cuh"
#include "paged_attention/prefill_cache.cuh"
#include "paged_attention/prefill_wgmma_params.cuh"

constexpr int RUN = 16;         // positions that a warp takes
constexpr int LEAST_TILES = 2;  // of a row that has its keys converted here
constexpr int ROW_UNITS = COLUMNS / 8, LANE_UNITS = RUN * ROW_UNITS / 32;  // of eight numbers

// The positions of a row that are converted, and how many blocks and runs they are.
struct ConvertedRow {
    int begin, end, blocks, runs;

    __device__ __forceinline__ ConvertedRow(const PagedAttention& p, int row) {
        const RowTiles tiles(p, row);
        begin = p.sliding_window > 0 ? max(0, tiles.cached - p.sliding_window + 1) : 0;
        end = tiles.cached + tiles.tokens;
        const bool many = tiles.tiles >= LEAST_TILES;
        blocks = many ? (end - 1) / TILE_KEYS - begin / TILE_KEYS + 1 : 0;
        runs = many ? (end - 1) / RUN - begin / RUN + 1 : 0;
    }
};

// The sum over the lanes up to this one.
__device__ __forceinline__ int sum_of_lanes(int number) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_up_sync(~0u, number, step);
        number += lane >= step ? before : 0;
    }
    return number;
}

// Bytes to eight numbers of a key.
__device__ __forceinline__ int unit_of_tile(int key, int unit) {
#ifdef PLAIN_ROWS
    return (key * ROW_UNITS + unit) * 16;
#else
    return panel_unit<TILE_KEYS>(key, unit);
#endif
}

// to: the tile. position: of the first key. Numbers of positions outside of `begin` to `end` become zeros.
__device__ __forceinline__ void convert_run(unsigned char* to, const PagedAttention& p, int row, int position,
                                            int begin, int end, int head, bool value) {
    const int lane = threadIdx.x % 32, page = p.block_table[row * p.table_row + position / p.block_size];
    const int slot = position % p.block_size;
    const E4m3* from = static_cast<const E4m3*>(p.kv_pool) + value * p.pool_values + page * p.pool_block +
                       slot * p.pool_slot + head * p.pool_head;
    const float* scales = p.kv_scales + value * p.scales_values + page * p.scales_block + head * p.scales_head + slot;
    const auto inside = [&](int key) { return position + key >= begin && position + key < end; };
    const float scale = inside(lane % RUN) ? scales[lane % RUN] : 0.0f;
    uint2 numbers[LANE_UNITS];
#pragma unroll
    for (int i = 0; i < LANE_UNITS; ++i) {
        const int index = i * 32 + lane, key = index / ROW_UNITS, column = index % ROW_UNITS * 8;
        const bool read = inside(key) && column < HEAD_DIM;
        numbers[i] = read ? *reinterpret_cast<const uint2*>(from + key * p.pool_slot + column) : make_uint2(0u, 0u);
    }
#pragma unroll
    for (int i = 0; i < LANE_UNITS; ++i) {
        const int index = i * 32 + lane, key = index / ROW_UNITS;
        const int at = unit_of_tile(position % TILE_KEYS + key, index % ROW_UNITS);
        *reinterpret_cast<uint4*>(to + at) = unit_from_e4m3<DATA_T>(numbers[i], __shfl_sync(~0u, scale, key));
    }
}

extern "C" __global__ void __launch_bounds__(256)
paged_attention_prefill_convert(const __grid_constant__ WgmmaPrefill prefill) {
    const PagedAttention& p = prefill.call;
    const ConvertedKeys& converted = prefill.converted;
    wait_for_earlier_kernels();
    let_later_kernels_start();
    const int warps = gridDim.x * (blockDim.x / 32), first = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
#ifndef PLAIN_ROWS
    if (first == 0) {
        for (int i = lane; i < PART_KEYS * ROW_BYTES / 16; i += 32)
            static_cast<uint4*>(converted.zeros)[i] = make_uint4(0u, 0u, 0u, 0u);
    }
#endif
    int blocks = 0, runs = 0;  // of rows before
    int next = first;          // run of the warp: of keys and of values of each KV head in turn
    for (int batch = 0; batch < p.rows; batch += 32) {
        const ConvertedRow row(p, batch + lane);
        const int until_block = blocks + sum_of_lanes(row.blocks);
        const bool fits = row.blocks > 0 && until_block <= converted.blocks;
        const int shift = fits ? until_block - row.blocks - row.begin / TILE_KEYS : NOT_CONVERTED;
        if (first == 0 && batch + lane < p.rows) {
            converted.shift[batch + lane] = shift;
#ifdef PLAIN_ROWS
            const int length = p.seq_lens[batch + lane];
            converted.lengths[batch + lane] = fits ? length : 0;
            converted.other_lengths[batch + lane] = fits ? 0 : length;
#endif
        }
        const int own = fits ? row.runs * p.kv_heads * 2 : 0, until = runs + sum_of_lanes(own);
        blocks = __shfl_sync(~0u, until_block, 31);
        runs = __shfl_sync(~0u, until, 31);
        for (; next < runs; next += warps) {
            const int owner = __ffs(__ballot_sync(~0u, next < until)) - 1;
            const int index = next - __shfl_sync(~0u, until - own, owner), part = index % (p.kv_heads * 2);
            const int begin = __shfl_sync(~0u, row.begin, owner), end = __shfl_sync(~0u, row.end, owner);
            const int position = (begin / RUN + index / (p.kv_heads * 2)) * RUN;
            const int block = __shfl_sync(~0u, shift, owner) + position / TILE_KEYS;
            unsigned char* const to = converted_tile(converted, p, block, part / 2, part % 2);
            convert_run(to, p, batch + owner, position, begin, end, part / 2, part % 2);
        }
    }
}
