// The ways of keys and values to the shared memory of prefill_wgmma.cu. For its macros.
#pragma once

#include "common/bulk_copy.cuh"
#include "paged_attention/prefill_wgmma_queries.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int HELD_UNITS = CONVERTED ? 2 : 4;  // of e4m3, while they are read

// A block of keys, or of values, and its arrival. begin: where the one begins that this lane has looked up, in
// KEY_UNITs.
__device__ __forceinline__ void load_keys(unsigned char* tile, const DATA_T* source, int begin, float, uint64_t* full) {
    const int first = threadIdx.x / 32 * PART_KEYS;
    const auto offset = [&](int row) { return static_cast<long long>(__shfl_sync(~0u, begin, row)) * KEY_UNIT; };
    if (!BOXES && __all_sync(~0u, begin >= 0)) {
        load_rows<TILE_KEYS, PART_KEYS, false>(tile, first, source, offset);
    } else {
        load_rows<TILE_KEYS, PART_KEYS, true>(tile, first, source, offset);
    }
    barrier_arrive_after_copies(full);
}

// scale: of what this lane has looked up.
__device__ __forceinline__ void load_keys(unsigned char* tile, const E4m3* source, int begin, float scale,
                                          uint64_t* full) {
    const int first = threadIdx.x / 32 * PART_KEYS;
    using Held = HeldRows<PART_KEYS, COLUMNS, HELD_UNITS>;
#pragma unroll 1
    for (int part = 0; part < Held::PARTS; ++part) {
        Held held;
        held.load(source, begin, part);
        held.store(scale, [&](int row, int unit) { return tile + panel_unit<TILE_KEYS>(first + row, unit); }, part);
    }
    fence_for_wgmma();
    barrier_arrive(full);
}

// The same without e4m3 by boxes, where every key of this warp is read. `place`: of this lane's key.
__device__ __forceinline__ void copy_keys(unsigned char* tile, const TensorMap* map, const KeyPlace& place, int head,
                                          uint64_t* full) {
    constexpr int PANELS = COLUMNS / PANEL;
    const int first = threadIdx.x / 32 * PART_KEYS;
    const bool copies = threadIdx.x % 32 == 0;
    if (copies) {
        barrier_arrive_expecting(full, PART_KEYS / BOX_SLOTS * PANELS * BOX_BYTES);
    } else {
        barrier_arrive(full);
    }
#pragma unroll
    for (int row = 0; row < PART_KEYS; row += BOX_SLOTS) {
        const int page = __shfl_sync(~0u, place.block, row), slot = __shfl_sync(~0u, place.slot, row);
        if (!copies) continue;
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel) {
            copy_box(tile + (panel * TILE_KEYS + first + row) * ROW_BYTES, map, panel * PANEL, slot, head, page, full);
        }
    }
    __syncwarp();
}

// Keys of e4m3 that were converted before: `from` is their tile, and those of positions outside of the range are zeros.
// position: of the tile's first key.
__device__ __forceinline__ void copy_converted(unsigned char* tile, const unsigned char* from, const void* zeros,
                                               const KeyRange& range, int position, uint64_t* full) {
    constexpr int PANELS = COLUMNS / PANEL;
    const int first = threadIdx.x / 32 * PART_KEYS;
    if (threadIdx.x % 32 == 0) {
        const int begin = min(max(range.begin - position - first, 0), PART_KEYS);
        const int end = min(max(range.end - position - first, 0), PART_KEYS);
        barrier_arrive_expecting(full, PART_KEYS * PANELS * ROW_BYTES);
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel) {
            const int at = (panel * TILE_KEYS + first) * ROW_BYTES, read = at + begin * ROW_BYTES;
            if (begin > 0) copy_bulk(tile + at, zeros, begin * ROW_BYTES, full);
            if (begin < end) copy_bulk(tile + read, from + read, (end - begin) * ROW_BYTES, full);
            if (end < PART_KEYS) copy_bulk(tile + at + end * ROW_BYTES, zeros, (PART_KEYS - end) * ROW_BYTES, full);
        }
    } else {
        barrier_arrive(full);
    }
    __syncwarp();
}

#endif
