// How the warps of a block copy keys and values from pages to shared memory. A warp copies WARP_KEYS consecutive keys
// of a block of TILE_KEYS: they lie in one page, as pages hold multiples of 16 tokens.
//
// Macros: those of prefill_mma.cu.
#pragma once

#include "paged_attention/prefill_cache.cuh"

constexpr int COLUMNS = (HEAD_DIM + 15) / 16 * 16;  // of a row in shared memory; those past HEAD_DIM are zero
constexpr int WARP_KEYS = TILE_KEYS / WARPS;        // keys that a warp copies
static_assert(16 % WARP_KEYS == 0, "the keys of a warp lie in one page");

using Layout = SteppedLayout<DATA_T, COLUMNS>;
constexpr int UNITS = Layout::UNITS;

// The warp's place in its team, and the team.
__device__ __forceinline__ int warp_of_team() { return threadIdx.x / 32 % WARPS; }
__device__ __forceinline__ int team() { return TEAMS == 1 ? 0 : threadIdx.x / (32 * WARPS); }

// What the warps of a block know of their work. It lies in shared memory and is read where it is needed, as
// accumulators take nearly all registers.
struct Scope {
    Work work;
    KeyRange range;
    int64_t head_in_pool;  // elements to the KV head in a pool
    const int* table;      // pages of the row; with CONVERTED_POOL what its blocks are shifted by
    int last_block;        // of keys: the one that begins the range
    int seen_by_all;       // the first token of the tile sees keys up to this position,
    int seen_by_last;      // and with a sliding window the last one sees keys from this one on

    __device__ __forceinline__ void fill(const PagedAttention& p, const Work& of) {
        work = of;
        range = KeyRange(p, of.tile);
        head_in_pool = of.head * p.pool_head;
        table = p.block_table + of.tile.row * p.table_row;
        last_block = range.begin / TILE_KEYS;
        seen_by_all = of.tile.cached + of.tile.first / p.group;
        seen_by_last = p.sliding_window > 0 ? range.end - p.sliding_window : 0;
    }
};

// A number that is not negative, for products of 64 bits.
__device__ __forceinline__ int64_t wide(int number) { return static_cast<unsigned>(number); }

// A value in shared memory, which the compiler reads again each time.
template <typename T>
__device__ __forceinline__ T again(const T& value) {
    return *const_cast<const volatile T*>(&value);
}

// threadIdx.x, from which the compiler computes addresses anew: kept, they would take the registers.
__device__ __forceinline__ unsigned thread_again() {
    unsigned thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}

// Where a warp's keys lie: from a slot of a page on. page < 0: none of them is read.
struct KeyRun {
    int page, slot;

    // Of the block of keys with this number, which may be negative.
    __device__ __forceinline__ KeyRun(const PagedAttention& p, const Scope& scope, int block) {
        const int position = block * TILE_KEYS + static_cast<int>(thread_again() / 32 % WARPS * WARP_KEYS);
        const unsigned index = static_cast<unsigned>(position) / static_cast<unsigned>(p.block_size);
        const bool read = position < again(scope.range.end) && position + WARP_KEYS > again(scope.range.begin);
#ifdef CONVERTED_POOL
        page = read ? again(scope.table)[0] + static_cast<int>(index) : -1;
#else
        page = read ? again(scope.table)[index] : -1;
#endif
        slot = position - index * p.block_size;
    }
    // The first of them in the pool of keys; any place of the pool where none is read.
    __device__ __forceinline__ const CACHE_T* first(const PagedAttention& p, const Scope& scope) const {
        return static_cast<const CACHE_T*>(p.kv_pool) + again(scope.head_in_pool) + wide(max(page, 0)) * p.pool_block +
               wide(slot) * p.pool_slot;
    }
    __device__ __forceinline__ const float* first_scale(const PagedAttention& p, const Scope& scope) const {
        return p.kv_scales + wide(max(page, 0)) * p.scales_block + again(scope.work.head) * p.scales_head + slot;
    }
};

// Which of a warp's keys are read.
struct ReadKeys {
    unsigned shift, count;

    __device__ __forceinline__ ReadKeys(const Scope& scope, const KeyRun& run, int block) {
        const int begin = again(scope.range.begin);
        shift = block * TILE_KEYS + thread_again() / 32 % WARPS * WARP_KEYS - begin;
        count = run.page < 0 ? 0 : again(scope.range.end) - begin;
    }
    __device__ __forceinline__ bool has(unsigned key) const { return shift + key < count; }
};

// Copies of keys or values of a block: begun before work that does not need them, ended before work that does.
template <typename C, typename T>
struct Arrival {
    __device__ __forceinline__ void begin(T* tile, const C* from, int64_t stride, const float*, const ReadKeys& read) {
        const unsigned thread = thread_again(), lane = thread % 32, first = thread / 32 % WARPS * WARP_KEYS;
        if constexpr (Layout::SWIZZLED && 32 % UNITS == 0) {
            // A lane copies the same unit of every STEP-th key.
            constexpr int STEP = UNITS > 32 ? 1 : 32 / UNITS;
            const unsigned row = lane / UNITS, unit = lane % UNITS, to = Layout::unit(first + row, unit);
            from += wide(row) * stride + unit * Layout::UNIT;
#pragma unroll
            for (int i = 0; i < (WARP_KEYS + STEP - 1) / STEP; ++i) {
                const unsigned key = row + i * STEP;
                T* const at = tile + (to ^ (i * STEP % 8 * Layout::UNIT)) + i * STEP * Layout::PITCH;
                if (WARP_KEYS >= STEP || key < WARP_KEYS)
                    copy_async_16(at, from, read.has(key) && unit * Layout::UNIT < HEAD_DIM);
                from += STEP * stride;
            }
        } else {
#pragma unroll 2  // fully unrolled, addresses take the registers of accumulators
            for (unsigned i = lane; i < WARP_KEYS * UNITS; i += 32) {
                const unsigned key = i / UNITS, unit = i % UNITS;
                const bool inside = read.has(key) && unit * Layout::UNIT < HEAD_DIM;
                copy_async_16(tile + Layout::unit(first + key, unit),
                              from + (inside ? wide(key) * stride + unit * Layout::UNIT : 0), inside);
            }
        }
        commit_copies();
    }
    __device__ __forceinline__ void end(T*) {}
};
template <typename T>
struct Arrival<E4m3, T> {
    HeldRows<WARP_KEYS, COLUMNS> held;
    float scale;  // of one of the keys

    __device__ __forceinline__ void begin(T*, const E4m3* from, int64_t stride, const float* scales,
                                          const ReadKeys& read) {
        held.load_run(from, stride, [&](int key) { return read.has(key); });
        const unsigned mine = thread_again() % WARP_KEYS;
        scale = read.has(mine) ? scales[mine] : 0.0f;
    }
    __device__ __forceinline__ void end(T* tile) {
        const int first = thread_again() / 32 % WARPS * WARP_KEYS;
        held.template store<T>(scale, [&](int row, int unit) { return tile + Layout::unit(first + row, unit); });
    }
};
