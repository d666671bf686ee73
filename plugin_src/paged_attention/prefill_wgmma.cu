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
// whole boxes of common/tensor_map.cuh; not for e4m3), CONVERTED (1: e4m3 comes after prefill_convert.cu). Every head
// of every token starts at a multiple of 16 bytes.
#include "common/launch.cuh"
#include "paged_attention/prefill_wgmma_keys.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Together those of 3 * 168.
constexpr int PRODUCER_REGISTERS = IS_FP8 ? 88 : BOXES ? 56 : 72;
constexpr int CONSUMER_REGISTERS = (3 * 168 - PRODUCER_REGISTERS) / 2;
static_assert(IS_FP8 ? !BOXES : !CONVERTED, "boxes hold 16-bit numbers, which need no conversion");

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
__device__ __forceinline__ void produce(Shared& shared, const WgmmaPrefill& prefill, const TensorMap* maps) {
    const PagedAttention& p = prefill.call;
    RingPlace<STAGES> at_keys, at_values;
    RingPlace<QUERY_STAGES> at_queries;
    Deal deal(p);
    Task next;
    const auto take = [&] {
        next = deal.next(prefill);
        hand_over(shared, p, next, at_queries);
    };
    if (EARLY_QUERIES) take();
    for (;;) {
        const Task task = EARLY_QUERIES ? next : deal.next(prefill);
        if (task.work.tile.row < 0) {
            if (!EARLY_QUERIES) hand_over(shared, p, task, at_queries);
            break;
        }
        const Work& work = task.work;
        const CACHE_T* keys = static_cast<const CACHE_T*>(p.kv_pool) + work.head * p.pool_head;
        const CACHE_T* values = keys + p.pool_values;
        const KeyRange range(p, work.tile);
        const auto load = [&](unsigned char* tile, bool value, int block, const KeyPlace& place, uint64_t* full) {
            if (task.converted()) {
                const unsigned char* from =
                    converted_tile(prefill.converted, p, task.shift + block, work.head, value);
                copy_converted(tile, from, prefill.converted.zeros, range, block * TILE_KEYS, full);
            } else if (BOXES && __all_sync(~0u, place.unit >= 0)) {
                copy_keys(tile, maps + value, place, work.head, full);
            } else {
                load_keys(tile, value ? values : keys, place.unit, value ? place.value_scale : place.key_scale, full);
            }
        };
        const auto position = [&](int block) {
            return block * TILE_KEYS + threadIdx.x / 32 * PART_KEYS + threadIdx.x % PART_KEYS;
        };
        const auto look_up = [&](int block) {
            return task.converted() ? -1 : pool_block(p, work.tile, range, position(block));
        };
        int block = (range.end - 1) / TILE_KEYS;
        const int last = range.begin / TILE_KEYS;
        int ahead = look_up(block);  // with this lane's key of the next keys; on its way while others are copied
        const auto add_keys = [&](int of) {
            const KeyPlace place(p, work.head, ahead, position(of));
            if (of > last) ahead = look_up(of - 1);
            barrier_wait(&shared.keys_empty[at_keys.slot], at_keys.parity ^ 1);
            load(shared.keys[at_keys.slot], false, of, place, &shared.keys_full[at_keys.slot]);
            at_keys.advance();
            return place;
        };
        KeyPlace place = add_keys(block);
        if (!EARLY_QUERIES) hand_over(shared, p, task, at_queries);
        for (bool first = true; block >= last; --block, first = false) {
            KeyPlace after;
            if (block > last) after = add_keys(block - 1);
            barrier_wait(&shared.values_empty[at_values.slot], at_values.parity ^ 1);
            load(shared.values[at_values.slot], true, block, place, &shared.values_full[at_values.slot]);
            at_values.advance();
            place = after;
            if (EARLY_QUERIES && first) take();
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
        const bool converted = CONVERTED && shared.converted[at_queries.slot];
        // Whether threads may have copied a part of a block of keys: with boxes, of the first and the last one.
        const auto written = [&](bool end) { return BOXES ? end : HEAD_DIM > 128 || !converted; };
        const unsigned long long queries = operand(shared.queries[at_queries.slot] + first_row * ROW_BYTES);
        const KeyRange range(p, work.tile);
        GroupRows rows(p, work, first_row);
        const int last_block = range.begin / TILE_KEYS;
        int block = (range.end - 1) / TILE_KEYS;
        float s[TILE_KEYS / 2], correction[2];
        unsigned weights[TILE_KEYS / 16][4];

        wait_for_tile(&shared.keys_full[at_keys.slot], at_keys, true);  // threads copied the queries
        start_scores(s, queries, shared.keys[at_keys.slot]);
        wgmma_wait<0>();
        in_flight(s);
        barrier_arrive_of_warp(&shared.keys_empty[at_keys.slot]);
        at_keys.advance();
        rows.weigh(s, correction, p, block * TILE_KEYS, factor);
        round_weights(weights, s);
        bool at_end = true;  // of the range, as to values
        while (--block >= last_block) {
            wait_for_tile(&shared.keys_full[at_keys.slot], at_keys, written(block == last_block));
            start_scores(s, queries, shared.keys[at_keys.slot]);
            wait_for_tile(&shared.values_full[at_values.slot], at_values, written(at_end));
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
        wait_for_tile(&shared.values_full[at_values.slot], at_values, written(true));
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
        if (BOXES || CONVERTED) fence_for_bulk_copies();
        if (BOXES) {
            acquire_tensor_map(maps);
            acquire_tensor_map(maps + 1);
        }
        produce(shared, prefill, maps);
    } else {
        grow_registers<CONSUMER_REGISTERS>();
        consume(shared, p);
    }
#endif
}
