// Rows whose states have rings, visited by persistent blocks (sm_90 and up), whose warps have different tasks.
//
// One warp copies the states into shared memory, chunk after chunk, by bulk copies. PRODUCERS warps take the heads in
// turn and prepare their tokens. WARPS warps compute. Each waits only for barriers of shared memory, so that the copies
// of later heads are in flight all the time.
//
// Macros: KEY_SIZE (64 or 128); RING; DENSE (rows are dense); STAGES (chunks in shared memory); PRODUCERS.
#pragma once

#include "common/bulk_copy.cuh"
#include "common/launch.cuh"
#include "common/ring.cuh"
#include "common/rows.cuh"
#include "gated_delta_rule/ring_params.cuh"

#if __CUDA_ARCH__ >= 900

namespace {

constexpr int WARPS = 8;                 // that compute
constexpr int STATE_WARP = WARPS;        // copies
constexpr int FIRST_PRODUCER = WARPS + 1;
constexpr int VALUE_SIZE = 128;
constexpr int64_t HEAD_SIZE = KEY_SIZE * VALUE_SIZE;
constexpr int CHUNKS = 4;                // of a head's state: rows one after another
constexpr int CHUNK_ROWS = KEY_SIZE / CHUNKS;
constexpr int CHUNK_BYTES = CHUNK_ROWS * VALUE_SIZE * 4;

// The work of one head of one row.
struct RingWork {
    int row, head, slot, first_token;
    int stored;      // tokens in the ring
    bool has_token;  // that is added to them

    __device__ __forceinline__ int count() const { return stored + has_token; }
    // Whether the state is written.
    __device__ __forceinline__ bool flushes() const { return !has_token || count() == RING; }
    __device__ __forceinline__ int64_t token_at(int64_t row_stride, int64_t token_stride) const {
        return DENSE ? row * row_stride : first_token * token_stride;
    }
};

// Calls visit(n, work) for the block's n-th head that has work, in the same order in every calling warp, and
// zero(row, head) for those whose output is zero. Called by whole warps.
template <typename Visit, typename Zero>
__device__ __forceinline__ void visit_rings(const GatedDeltaRing& params, Visit visit, Zero zero) {
    const Rows& rows = params.decode.rows;
    const int heads = params.value_heads, lane = threadIdx.x % 32, all = rows.rows * heads;
    int n = 0;
    for (int first = blockIdx.x; first < all; first += 32 * gridDim.x) {
        // Lane l reads about the l-th head from here on: the loads depend on each other.
        const int own = first + lane * int(gridDim.x);
        RowView view;
        view.slot = -1;
        view.first_token = view.length = 0;
        if (own < all) view = row_view(rows, own / heads);
        const bool is_empty = view.length == 0 && !params.flushes_empty;
        const int stored = view.slot >= 0 && !is_empty ? stored_tokens(params.lengths, view.slot, RING) : 0;
        const bool has_token = view.slot >= 0 && view.length > 0 && view.length <= params.most_added;
        if (DENSE) {
            unsigned zeros = __ballot_sync(~0u, view.slot >= 0 && is_empty && params.most_added > 0);
            for (; zeros; zeros &= zeros - 1) {
                const int item = first + (__ffs(zeros) - 1) * int(gridDim.x);
                zero(item / heads, item % heads);
            }
        }
        const int packed = 2 * stored + has_token;
        for (unsigned todo = __ballot_sync(~0u, packed > 0); todo; todo &= todo - 1) {
            const int from = __ffs(todo) - 1, item = first + from * int(gridDim.x);
            const int found = __shfl_sync(~0u, packed, from);
            visit(n++, RingWork{item / heads, item % heads, __shfl_sync(~0u, int(view.slot), from),
                                __shfl_sync(~0u, int(view.first_token), from), found / 2, found % 2 != 0});
        }
    }
}

// A place in the chunks of shared memory, which are filled and read in turn.
using ChunkPlace = RingPlace<STAGES>;

// Barriers of a block. Chunks and tokens are released by each lane of WARPS: racecheck does not follow one lane that
// arrives for its warp, which takes 0.6 % less time (H200).
struct StreamBarriers {
    uint64_t chunk_ready[STAGES], chunk_free[STAGES];
    uint64_t tokens_ready[PRODUCERS], tokens_free[PRODUCERS];

    __device__ __forceinline__ void init() {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(&chunk_ready[i], 1);
            barrier_init(&chunk_free[i], 32 * WARPS);
        }
        for (int i = 0; i < PRODUCERS; ++i) {
            barrier_init(&tokens_ready[i], 32);
            barrier_init(&tokens_free[i], 32 * WARPS);
        }
        barriers_publish();
    }
};

// The warp that copies: the state of each head, [KEY_SIZE][VALUE_SIZE] floats, in CHUNKS parts.
__device__ __forceinline__ void stream_states(const GatedDeltaRing& params, StreamBarriers& barriers,
                                              char (*chunks)[CHUNK_BYTES]) {
    const GatedDeltaDecode& p = params.decode;
    fence_for_bulk_copies();
    ChunkPlace place;
    visit_rings(
        params,
        [&](int, const RingWork& work) {
            if (threadIdx.x % 32 == 0) {
                const float* state = static_cast<const float*>(p.state) + work.slot * p.state_slot +
                                     work.head * HEAD_SIZE;
                for (int c = 0; c < CHUNKS; ++c) {
                    barrier_wait(&barriers.chunk_free[place.slot], place.parity ^ 1);
                    barrier_arrive_expecting(&barriers.chunk_ready[place.slot], CHUNK_BYTES);
                    copy_bulk_once(chunks[place.slot], state + c * CHUNK_ROWS * VALUE_SIZE, CHUNK_BYTES,
                                   &barriers.chunk_ready[place.slot]);
                    place.advance();
                }
            }
            __syncwarp();
        },
        [](int, int) {});
}

// Adds each of COUNT values (a power of two up to 32) over the lanes with the same l % (32 / COUNT): lane l ends with
// the sum of value l / (32 / COUNT).
template <int COUNT, int DISTANCE = 16>
__device__ __forceinline__ float sum_each(float* values) {
    if constexpr (COUNT > 1) {
        const bool upper = threadIdx.x & DISTANCE;
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) {
            const float given = upper ? values[i] : values[i + COUNT / 2];
            values[i] = (upper ? values[i + COUNT / 2] : values[i]) + __shfl_xor_sync(~0u, given, DISTANCE);
        }
        return sum_each<COUNT / 2, DISTANCE / 2>(values);
    }
    return values[0];
}

// The sum over LANES neighbouring lanes (a power of two), in all of them.
template <int LANES>
__device__ __forceinline__ float sum_of_lanes(float value) {
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
    return value;
}

}  // namespace

#endif
