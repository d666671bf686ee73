// Ragged causal attention over pages on Hopper's warpgroup products, for 16-bit data.
//
// Blocks are persistent: each takes tiles of prefill_tiles.cuh, the heaviest first, in turns that run forward and
// backward. One warpgroup gathers queries, keys and values from their pages ahead of two that compute, each 64 rows of
// the tile (FlashAttention-3, arXiv 2407.08608: a warpgroup's softmax runs while the tensor cores multiply for it or
// the other).
//   scores = scale * Q K^T;  y = softmax(scores) V
//
// Macros: DATA_T, CACHE_T (DATA_T, or E4m3 with scales), HEAD_DIM (a multiple of 8, at most 256), TILE_ROWS (128),
// TILE_KEYS (64 or 128), STAGES (of keys and of values), QUERY_STAGES, SOFTCAP (0, 1), BOXES (1: the copy engine copies
// whole boxes of common/tensor_map.cuh; not for e4m3). Every head of every token starts at a multiple of 16 bytes.
#include "common/bulk_copy.cuh"
#include "common/launch.cuh"
#include "paged_attention/prefill_wgmma_queries.cuh"

struct WgmmaPrefill {
    PagedAttention call;
    TensorMap* maps;  // with BOXES: of keys and of values, for each block of the grid
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int HELD_UNITS = 4;  // of e4m3, while they are read
// Together those of 3 * 168.
constexpr int PRODUCER_REGISTERS = IS_FP8 ? 88 : BOXES ? 56 : 72;
constexpr int CONSUMER_REGISTERS = (3 * 168 - PRODUCER_REGISTERS) / 2;
static_assert(!BOXES || !IS_FP8, "e4m3 is converted on its way");

// A block of keys, or of values, and its arrival. begin: where the one begins that this lane has looked up, in
// KEY_UNITs.
__device__ __forceinline__ void load_keys(unsigned char* tile, const DATA_T* source, int begin, float, uint64_t* full) {
    constexpr int ROWS = TILE_KEYS / 4;
    const int first = threadIdx.x / 32 * ROWS;
    const auto offset = [&](int row) { return static_cast<long long>(__shfl_sync(~0u, begin, row)) * KEY_UNIT; };
    if (!BOXES && __all_sync(~0u, begin >= 0)) {
        load_rows<TILE_KEYS, ROWS, false>(tile, first, source, offset);
    } else {
        load_rows<TILE_KEYS, ROWS, true>(tile, first, source, offset);
    }
    barrier_arrive_after_copies(full);
}

// scale: of what this lane has looked up.
__device__ __forceinline__ void load_keys(unsigned char* tile, const E4m3* source, int begin, float scale,
                                          uint64_t* full) {
    constexpr int ROWS = TILE_KEYS / 4;
    const int first = threadIdx.x / 32 * ROWS;
    using Held = HeldRows<ROWS, COLUMNS, HELD_UNITS>;
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
    constexpr int ROWS = TILE_KEYS / 4, PANELS = COLUMNS / PANEL;
    const int first = threadIdx.x / 32 * ROWS;
    const bool copies = threadIdx.x % 32 == 0;
    if (copies) {
        barrier_arrive_expecting(full, ROWS / BOX_SLOTS * PANELS * BOX_BYTES);
    } else {
        barrier_arrive(full);
    }
#pragma unroll
    for (int row = 0; row < ROWS; row += BOX_SLOTS) {
        const int page = __shfl_sync(~0u, place.block, row), slot = __shfl_sync(~0u, place.slot, row);
        if (!copies) continue;
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel) {
            copy_box(tile + (panel * TILE_KEYS + first + row) * ROW_BYTES, map, panel * PANEL, slot, head, page, full);
        }
    }
    __syncwarp();
}

// The maps of keys and of values, by the first two warps.
__device__ __forceinline__ void make_maps(TensorMap* maps, Shared& shared, const PagedAttention& p) {
    const int which = threadIdx.x / 32, bytes = sizeof(DATA_T);
    if (which >= 2) return;
    const void* first = static_cast<const DATA_T*>(p.kv_pool) + which * p.pool_values;
    const int64_t slot = p.pool_slot * bytes, head = p.pool_head * bytes, page = p.pool_block * bytes;
    const PagedTensor tensor = {first, HEAD_DIM, p.block_size, p.kv_heads, slot, head, page};
    make_tensor_map(maps + which, reinterpret_cast<TensorMap*>(shared.maps[which]), tensor);
}

// The first warpgroup. maps: of keys and of values, with BOXES.
__device__ __forceinline__ void produce(Shared& shared, const PagedAttention& p, const TensorMap* maps) {
    RingPlace<STAGES> at_keys, at_values;
    RingPlace<QUERY_STAGES> at_queries;
    Deal deal;
    for (;;) {
        const Work work = deal.next(p);
        if (work.tile.row < 0) {
            hand_over(shared, p, work, at_queries);
            break;
        }
        const CACHE_T* keys = static_cast<const CACHE_T*>(p.kv_pool) + work.head * p.pool_head;
        const CACHE_T* values = keys + p.pool_values;
        const auto load = [&](unsigned char* tile, bool value, const KeyPlace& place, uint64_t* full) {
            if (BOXES && __all_sync(~0u, place.unit >= 0)) {
                copy_keys(tile, maps + value, place, work.head, full);
            } else {
                load_keys(tile, value ? values : keys, place.unit, value ? place.value_scale : place.key_scale, full);
            }
        };
        const KeyRange range(p, work.tile);
        const auto position = [&](int block) {
            return block * TILE_KEYS + threadIdx.x / 32 * (TILE_KEYS / 4) + threadIdx.x % (TILE_KEYS / 4);
        };
        const auto look_up = [&](int block) { return pool_block(p, work.tile, range, position(block)); };
        int block = (range.end - 1) / TILE_KEYS;
        const int last = range.begin / TILE_KEYS;
        int ahead = look_up(block);  // with this lane's key of the next keys; on its way while others are copied
        const auto add_keys = [&](int of) {
            const KeyPlace place(p, work.head, ahead, position(of));
            if (of > last) ahead = look_up(of - 1);
            barrier_wait(&shared.keys_empty[at_keys.slot], at_keys.parity ^ 1);
            load(shared.keys[at_keys.slot], false, place, &shared.keys_full[at_keys.slot]);
            at_keys.advance();
            return place;
        };
        KeyPlace place = add_keys(block);
        hand_over(shared, p, work, at_queries);
        for (; block >= last; --block) {
            KeyPlace next;
            if (block > last) next = add_keys(block - 1);
            barrier_wait(&shared.values_empty[at_values.slot], at_values.parity ^ 1);
            load(shared.values[at_values.slot], true, place, &shared.values_full[at_values.slot]);
            at_values.advance();
            place = next;
        }
    }
    commit_copies();
    wait_copies<0>();  // no thread ends before its copies
}

// The other warpgroups.
__device__ __forceinline__ void consume(Shared& shared, const PagedAttention& p) {
    const int first_row = (threadIdx.x / 128 - 1) * GROUP_ROWS;
    const float factor = score_factor(p);
    RingPlace<STAGES> at_keys, at_values;
    for (RingPlace<QUERY_STAGES> at_queries;; at_queries.advance()) {
        barrier_wait(&shared.queries_full[at_queries.slot], at_queries.parity);
        const Work work = shared.work[at_queries.slot];
        if (work.tile.row < 0) return;
        const unsigned long long queries = operand(shared.queries[at_queries.slot] + first_row * ROW_BYTES);
        const KeyRange range(p, work.tile);
        GroupRows rows(p, work, first_row);
        const int last_block = range.begin / TILE_KEYS;
        int block = (range.end - 1) / TILE_KEYS;
        float s[TILE_KEYS / 2], correction[2];
        unsigned weights[TILE_KEYS / 16][4];

        wait_for_tile(&shared.keys_full[at_keys.slot], at_keys, true);
        start_scores(s, queries, shared.keys[at_keys.slot]);
        wgmma_wait<0>();
        in_flight(s);
        barrier_arrive_of_warp(&shared.keys_empty[at_keys.slot]);
        at_keys.advance();
        rows.weigh(s, correction, p, block * TILE_KEYS, factor);
        round_weights(weights, s);
        bool at_end = true;  // of the range, as to values
        while (--block >= last_block) {
            wait_for_tile(&shared.keys_full[at_keys.slot], at_keys, block == last_block);
            start_scores(s, queries, shared.keys[at_keys.slot]);
            wait_for_tile(&shared.values_full[at_values.slot], at_values, at_end);
            at_end = false;
            start_outputs(rows.y, weights, shared.values[at_values.slot]);
            wgmma_wait<1>();
            in_flight(s);
            barrier_arrive_of_warp(&shared.keys_empty[at_keys.slot]);
            at_keys.advance();
            const bool corrected = rows.weigh(s, correction, p, block * TILE_KEYS, factor);
            wgmma_wait<0>();
            in_flight(rows.y);
            in_flight(weights);
            barrier_arrive_of_warp(&shared.values_empty[at_values.slot]);
            at_values.advance();
            if (corrected) rows.correct(correction);
            round_weights(weights, s);
        }
        barrier_arrive(&shared.queries_empty[at_queries.slot]);
        wait_for_tile(&shared.values_full[at_values.slot], at_values, true);
        start_outputs(rows.y, weights, shared.values[at_values.slot]);
        wgmma_wait<0>();
        in_flight(rows.y);
        in_flight(weights);
        barrier_arrive_of_warp(&shared.values_empty[at_values.slot]);
        at_values.advance();
        rows.store(p, work, factor);
    }
}

#endif

extern "C" __global__ void __launch_bounds__(384, 1)
paged_attention_prefill_wgmma(const __grid_constant__ WgmmaPrefill prefill) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const PagedAttention& p = prefill.call;
    TensorMap* const maps = prefill.maps + 2 * blockIdx.x;
    if (threadIdx.x == 0) {
        shared.init_barriers();
        barriers_publish();
    }
    wait_for_earlier_kernels();
    if (BOXES) make_maps(maps, shared, p);
    __syncthreads();
    let_later_kernels_start();
    if (threadIdx.x < 128) {
        shrink_registers<PRODUCER_REGISTERS>();
        if (BOXES) {
            fence_for_bulk_copies();
            acquire_tensor_map(maps);
            acquire_tensor_map(maps + 1);
        }
        produce(shared, p, maps);
    } else {
        grow_registers<CONSUMER_REGISTERS>();
        consume(shared, p);
    }
#endif
}
