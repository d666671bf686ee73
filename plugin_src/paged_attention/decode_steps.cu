// Attention of one token over paged keys and values.
//
// A block has WARPS warps, each with a ring of STAGES steps of 16 positions in shared memory that it fills for itself
// with asynchronous copies: no barrier of the block stands between a copy and its use. Every warp keeps a softmax of
// its own; at the end of a unit (KV head of an item) the block merges them.
//
// CLUSTER 1: one block for each unit. More: the blocks of a cluster share a unit and merge through each other's shared
// memory. 0: blocks take even stretches of all steps, whatever the lengths of rows, and the last block to finish a
// shared unit merges its parts in their order.
#include "common/launch.cuh"
#include "paged_attention/decode_merge.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int STAGED_COLUMNS = 2;  // of the block table in one thread

// A unit: KV head `kv_head` and the query heads from first_head on, `heads` of them, of an item.
struct Unit {
    Item item;
    int begin;  // of its steps
    int end;
    int kv_head;
    int first_head;
    int heads;
    int index;  // of its counter

    __device__ __forceinline__ Unit(const PagedDecode& p, const Work& work, int step) {
        const int place = CLUSTER ? 0 : item_of_step(work, p.units, step);
        item = CLUSTER ? work.own : work.items[place];
        const int steps = item.steps(), front = CLUSTER ? 0 : work.before[place] * p.units;
        const int number = CLUSTER ? blockIdx.y : (step - front) / steps;
        begin = CLUSTER ? 0 : front + number * steps;
        end = begin + steps;
        kv_head = p.tiles == 1 ? number : number / p.tiles;
        const int head = (number - kv_head * p.tiles) * QUERIES;
        first_head = kv_head * p.call.group + head;
        heads = min(QUERIES, p.call.group - head);
        index = place * p.units + number;
    }
    // First position of step `step`, and which of its positions are seen.
    __device__ __forceinline__ int position(int step) const { return (item.first + step - begin) * STEP; }
    __device__ __forceinline__ int low(const PagedAttention& call, int position) const {
        return call.sliding_window ? max(0, item.length - call.sliding_window - position) : 0;
    }
    __device__ __forceinline__ int high(int position) const { return min(STEP, item.length - position); }
};

// Where the next 32 steps of a warp lie, one in each lane, and the copies that they become.
struct StepSource {
    Place place = {};
    int seen = 0;  // low + 32 * high

    __device__ __forceinline__ void find(const PagedDecode& p, const Work& work, int step) {
        if (step >= work.end) return;
        const PagedAttention& call = p.call;
        const Unit unit(p, work, step);
        const int number = unit.item.first + step - unit.begin, position = number * STEP;
        const int page = p.block_steps == 1 ? number : number / p.block_steps;
        const int* table = CLUSTER ? work.table : call.block_table + unit.item.row * call.table_row;
        const int block = table[page];
        const int slot = position - page * call.block_size;
        place.keys = block * call.pool_block + slot * call.pool_slot + unit.kv_head * call.pool_head;
        if (IS_FP8) place.scales = block * call.scales_block + unit.kv_head * call.scales_head + slot;
        seen = unit.low(call, position) + 32 * unit.high(position);
    }
    __device__ __forceinline__ void copy(const PagedAttention& call, const StepTiles& tiles, int lane) const {
        const Place from = {__shfl_sync(0xffffffffu, place.keys, lane),
                            IS_FP8 ? __shfl_sync(0xffffffffu, place.scales, lane) : 0};
        const int range = __shfl_sync(0xffffffffu, seen, lane);
        copy_step(tiles, from, call, range % 32, range / 32);
    }
};

__device__ __forceinline__ void load_queries(QueryFragments& q, const PagedAttention& call, const Unit& unit) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const DATA_T* query = static_cast<const DATA_T*>(call.query) + unit.item.token * call.query_token;
#pragma unroll
    for (int tile = 0; tile < QUERY_TILES; ++tile) {
        const int head = 8 * tile + g;
#pragma unroll
        for (int step = 0; step < DIM_STEPS; ++step)
            q[tile][step].load(query + (unit.first_head + head) * call.query_head,
                               step * Products::K, t, head < unit.heads);
    }
}

// Merges the warps of the block, then the parts of other blocks that have steps of the unit. Ends such that the buffer
// may be written again.
__device__ __forceinline__ void finish_shared_unit(const PagedDecode& p, const Work& work, const Unit& unit,
                                                   const MergeBuffer& buffer) {
    const int first = unit.begin / work.share, last = (unit.end - 1) / work.share, block = blockIdx.x;
    const int runs = unit.heads * RUNS;
    const bool whole = first == last;
    float* part = p.partials + (2ll * block + (block == first)) * PART;
    for (int i = threadIdx.x; i < runs; i += THREADS) {
        const int head = i / RUNS, dim = i % RUNS * RUN;
        const Partial partial = merged_states(buffer, WARPS, head, dim);
        if (whole) store_output(p.call, partial, unit.item.token, unit.first_head + head, dim);
        else store_part(part, partial, head, dim);
    }
    if (!whole && is_last_block(p.counters + unit.index, last - first + 1)) {
        // Threads that are left over halve the parts of each run, or quarter them.
        const int groups = max(1, min(WARPS, THREADS / runs));
        for (int i = threadIdx.x; i < groups * runs; i += THREADS) {
            const int group = i / runs, head = i % runs / RUNS, dim = i % RUNS * RUN;
            const Partial partial = merged_parts(p.partials, first, first + group, last, groups, head, dim);
            const int place = group * buffer.heads + head;
            *buffer.run(place, dim) = partial.run();
            if (dim == 0) buffer.range[place] = make_float2(partial.largest, partial.sum);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < runs; i += THREADS) {
            const int head = i / RUNS, dim = i % RUNS * RUN;
            const Partial partial = merged_states(buffer, groups, head, dim);
            store_output(p.call, partial, unit.item.token, unit.first_head + head, dim);
        }
    }
    __syncthreads();
}

// The same for the blocks of a cluster: each merges its share of the runs, which the others send to it.
__device__ __forceinline__ void finish_cluster_unit(const PagedDecode& p, const Unit& unit, const MergeBuffer& buffer) {
    const int runs = unit.heads * RUNS;
    if (CLUSTER > 1) cluster_wait();  // all blocks have begun
    for (int i = threadIdx.x; i < runs; i += THREADS) {
        const int head = i / RUNS, dim = i % RUNS * RUN;
        const Partial partial = merged_states(buffer, WARPS, head, dim);
        if (CLUSTER > 1) buffer.send(i, make_float2(partial.largest, partial.sum), partial.run());
        else store_output(p.call, partial, unit.item.token, unit.first_head + head, dim);
    }
    if (CLUSTER == 1) return;
    cluster_arrive();
    cluster_wait();
    const int first = blockIdx.x * buffer.share;
    for (int i = threadIdx.x; i < min(buffer.share, runs - first); i += THREADS) {
        const int head = (first + i) / RUNS, dim = (first + i) % RUNS * RUN;
        store_output(p.call, merged_cluster(buffer, i), unit.item.token, unit.first_head + head, dim);
    }
}

// Steps of a block's stretch, of at least `even`. Cuts at the ends of units spare merges: where rows are as long as the
// first one, stretches are made whole units or equal parts of one, unless that makes them a 16th longer.
__device__ __forceinline__ int line_share(int even, int unit) {
    if (unit > 0) {
        const int whole = even < unit ? (unit - 1) / (unit / even) + 1 : (even + unit - 1) / unit * unit;
        if (whole <= even + even / 16) return whole;
    }
    return (even + WARPS - 1) / WARPS * WARPS;
}

// The stretch of this block of the line; items and their steps in shared memory at `memory`.
__device__ __forceinline__ Work find_stretch(const PagedDecode& p, unsigned char* memory) {
    __shared__ int sums[WARPS];
    Item* items = reinterpret_cast<Item*>(memory);
    int* before = reinterpret_cast<int*>(items + p.items);
    if (p.items == 1 && p.call.rows == 1) {  // nothing to add up
        const Item only = item_from_row(p.call, 0);
        if (threadIdx.x == 0) items[0] = only, before[0] = 0, before[1] = only.steps();
        __syncthreads();
    } else {
        find_items<THREADS>(p, items);
        count_steps<THREADS>(items, p.items, before, sums);
    }
    const int steps = before[p.items] * p.units, blocks = gridDim.x, block = blockIdx.x;
    const int share = line_share(max(1, (steps + blocks - 1) / blocks), items[0].steps());
    const long long begin = static_cast<long long>(block) * share;
    const int end = static_cast<int>(min(static_cast<long long>(steps), begin + share));
    return {Item(), nullptr, items, before, p.items, static_cast<int>(min(static_cast<long long>(steps), begin)), end,
            share};
}

// The share of this block of a cluster. Its row is mostly that of the item's number: the row's table is read
// before anything is known of it.
__device__ __forceinline__ Work find_share(const PagedDecode& p, unsigned char* memory) {
    const int number = blockIdx.z, thread = threadIdx.x;
    const int* table = p.call.block_table + number * p.call.table_row;
    int* staged = reinterpret_cast<int*>(memory + sizeof(Item));
    int columns[STAGED_COLUMNS];
#pragma unroll
    for (int i = 0; i < STAGED_COLUMNS; ++i) {
        const int column = thread + i * THREADS;
        if (column < p.staged) columns[i] = table[column];
    }
    Item own = item_from_row(p.call, number);
#pragma unroll
    for (int i = 0; i < STAGED_COLUMNS; ++i) {
        const int column = thread + i * THREADS;
        if (column < p.staged) staged[column] = columns[i];
    }
    if (p.staged) table = staged;
    if (p.every_token && (own.token != number || own.length < 0)) {
        Item* item = reinterpret_cast<Item*>(memory);
        search_items<THREADS>(p, number, 1, item);
        own = *item;
        if (own.row != number) table = p.call.block_table + own.row * p.call.table_row;
    } else if (p.staged) {
        __syncthreads();
    }
    const int steps = own.steps(), blocks = max(CLUSTER, 1), rank = blockIdx.x;
    const int share = (steps + blocks - 1) / blocks;
    const bool busy = rank * share < steps;
    return {own, table, nullptr, nullptr, 0, busy ? rank * share : 0, busy ? min(steps, (rank + 1) * share) : 0, share};
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    paged_attention_decode(const __grid_constant__ PagedDecode p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned char* ring = memory + warp * STAGES * STEP_BYTES;
    float* merge_memory = reinterpret_cast<float*>(memory + WARPS * STAGES * STEP_BYTES);
    MergeBuffer buffer(merge_memory, p.merged_heads);
    if (COLUMNS != HEAD_DIM) {  // the copies leave these columns out
        constexpr int UNITS = COLUMNS / Tile::UNIT;
        CACHE_T* tiles = reinterpret_cast<CACHE_T*>(ring);  // without scales, as head_dim is then a multiple of 16
        for (int row = lane; row < STAGES * 2 * STEP; row += 32)
            for (int unit = HEAD_DIM / Tile::UNIT; unit < UNITS; ++unit)
                *reinterpret_cast<uint4*>(tiles + row / STEP * TILE + Tile::unit(row % STEP, unit)) =
                    make_uint4(0, 0, 0, 0);
    }
    prefetch_tables<THREADS>(p);
    let_later_kernels_start();
    wait_for_earlier_kernels();
    unsigned char* item_memory = static_cast<unsigned char*>(buffer.end());
    const Work work = CLUSTER ? find_share(p, item_memory) : find_stretch(p, item_memory);
    if (CLUSTER ? work.share == 0 : work.begin >= work.end) return;
    if (CLUSTER > 1) cluster_arrive();

    // Steps of this warp: begin + warp + WARPS * i. Copies run STAGES - 1 steps ahead of use.
    StepSource source;
    int ahead = 0, filled = 0, used = 0;  // steps begun; slots of the ring
    auto copy_next = [&]() {
        const int step = work.begin + warp + WARPS * ahead;
        if (ahead % 32 == 0) source.find(p, work, step + WARPS * lane);
        if (step < work.end) source.copy(p.call, {ring + filled * STEP_BYTES}, ahead % 32);
        commit_copies();
        ++ahead;
        filled = filled + 1 == STAGES ? 0 : filled + 1;
    };
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; ++i) copy_next();

    int step = work.begin + warp;
    int reached = work.begin;
    do {  // once for a block of a cluster, even without steps
        const Unit unit(p, work, reached);
        reached = min(unit.end, work.end);
        QueryFragments q;
        load_queries(q, p.call, unit);
        WarpState state;
        state.clear();
#pragma unroll 1
        for (; step < reached; step += WARPS) {
            __syncwarp();  // every lane is done with the slot that is filled now
            copy_next();
            wait_copies<STAGES - 1>();
            __syncwarp();
            const int position = unit.position(step);
            take_step(state, {ring + used * STEP_BYTES}, q, p.call, unit.low(p.call, position), unit.high(position));
            used = used + 1 == STAGES ? 0 : used + 1;
        }
        buffer.store(state, warp);
        __syncthreads();
        if (CLUSTER) finish_cluster_unit(p, unit, buffer);
        else finish_shared_unit(p, work, unit, buffer);
    } while (reached < work.end);
}
