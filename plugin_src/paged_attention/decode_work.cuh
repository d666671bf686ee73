// Which part of which row's keys and values a block of the decode kernel reads.
//
// The positions that an item sees are cut into steps of 16, each inside one page. All steps of all items and units are
// numbered in one line, items outermost, then units, then steps; a block takes a stretch of it, or with clusters its
// share of one unit.
#pragma once

#include "paged_attention/decode_params.cuh"

constexpr int STEP = 16;  // positions

struct Item {
    int row;
    int token;   // of query and y
    int length;  // positions up to the token's own; at most 0: nothing to do
    int first;   // step of the oldest position that it sees

    __device__ __forceinline__ int steps() const { return length > 0 ? (length + STEP - 1) / STEP - first : 0; }
};

// The stretch of one block. before[i]: steps of a unit of the items in front of item i. With clusters: the steps of
// item `own`, from 0 on.
struct Work {
    Item own;
    const int* table;  // of item `own`
    const Item* items;
    const int* before;
    int count;
    int begin;
    int end;
    int share;  // steps of every block but the last
};

__device__ __forceinline__ Item item_from_length(const PagedAttention& call, int row, int token, int length) {
    length = min(length, call.max_blocks * call.block_size);
    const int seen = call.sliding_window ? max(0, length - call.sliding_window) : 0;
    return {row, token, length, seen / STEP};
}

// The item of a row of one token; length -1 for other rows. No read of its numbers depends on another.
__device__ __forceinline__ Item item_from_row(const PagedAttention& call, int row) {
    const int token = call.query_start_loc[row], end = call.query_start_loc[row + 1], length = call.seq_lens[row];
    return item_from_length(call, row, token, end - token == 1 ? max(length, 0) : -1);
}

// Writes the items among `first` to first + count - 1 that are tokens of row `row`.
__device__ __forceinline__ void items_from_tokens(const PagedAttention& call, int row, int first, int count,
                                                  Item* items) {
    const int begin = call.query_start_loc[row], end = call.query_start_loc[row + 1], length = call.seq_lens[row];
    if (length <= 0) return;
    for (int token = max(begin, first); token < min(end, first + count); ++token)
        items[token - first] = item_from_length(call, row, token, length - (end - 1 - token));
}

// Items `first` to first + count - 1 as tokens, whatever rows they belong to.
template <int THREADS>
__device__ __forceinline__ void search_items(const PagedDecode& p, int first, int count, Item* items) {
    for (int i = threadIdx.x; i < count; i += THREADS) items[i] = Item{0, first + i, 0, 0};
    __syncthreads();
    for (int row = threadIdx.x; row < p.call.rows; row += THREADS) items_from_tokens(p.call, row, first, count, items);
    __syncthreads();
}

// All items. Thread i has written those of its own run of ceil(count / THREADS), or all threads have met.
template <int THREADS>
__device__ __forceinline__ void find_items(const PagedDecode& p, Item* items) {
    const int thread = threadIdx.x, run = (p.items + THREADS - 1) / THREADS;
    bool other = false;
#pragma unroll 1  // mostly one item
    for (int i = thread * run; i < min(p.items, (thread + 1) * run); ++i) {
        items[i] = item_from_row(p.call, i);
        other |= items[i].token != i || items[i].length < 0;
    }
    if (p.every_token && __syncthreads_or(other)) search_items<THREADS>(p, 0, p.items, items);
}

// before[0..count] from the items; `sums` has a number for each warp. Ends with a barrier.
template <int THREADS>
__device__ __forceinline__ void count_steps(const Item* items, int count, int* before, int* sums) {
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, run = (count + THREADS - 1) / THREADS;
    const int begin = min(count, thread * run), end = min(count, begin + run);
    int own = 0;
    for (int i = begin; i < end; ++i) own += items[i].steps();
    int upto = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, upto, distance);
        if (lane >= distance) upto += other;
    }
    if (lane == 31) sums[warp] = upto;
    __syncthreads();
    int sum = upto - own;
    for (int i = 0; i < warp; ++i) sum += sums[i];
    for (int i = begin; i < end; ++i) {
        before[i] = sum;
        sum += items[i].steps();
    }
    if (thread == THREADS - 1) before[count] = sum;
    __syncthreads();
}

// Item of step `step` of the line: the last one that begins at or in front of it.
__device__ __forceinline__ int item_of_step(const Work& work, int units, int step) {
    int low = 0, high = work.count;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (work.before[middle] * units <= step) low = middle;
        else high = middle;
    }
    return low;
}

// Brings the tables to the L2 before earlier kernels have ended: reads that depend on each other then take less time.
template <int THREADS>
__device__ __forceinline__ void prefetch_tables(const PagedDecode& p) {
    constexpr int SECTOR = 8;  // int32 that one prefetch brings
    const bool line = CLUSTER == 0;
    const long long first = line || p.every_token ? 0 : blockIdx.z * p.call.table_row;
    const long long place = (line ? static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x : threadIdx.x) * SECTOR;
    if (place < (line ? p.call.rows * p.call.table_row : p.call.max_blocks))
        prefetch_to_l2(p.call.block_table + first + place);
    if (place <= p.call.rows) prefetch_to_l2(p.call.query_start_loc + place);
    if (place < p.call.rows) prefetch_to_l2(p.call.seq_lens + place);
}
