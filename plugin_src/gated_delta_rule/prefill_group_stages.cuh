// The stages of prefill_groups.cu: what its last warps, the producers, copy ahead of the products of a chunk, and the
// outputs that they write after them.
//
// Macros: those of prefill_groups.cu.
#pragma once

#include "common/bulk_copy.cuh"
#include "gated_delta_rule/prefill_group.cuh"
#include "gated_delta_rule/prefill_tensors.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace {

constexpr int CONSUMERS = 128 * GROUPS, PRODUCERS = 32 * LOADERS, THREADS = CONSUMERS + PRODUCERS;
constexpr int SLICE = GROUPS * GROUP_COLUMNS;
constexpr int SLICES = VALUE_SIZE / SLICE;

// What the first kernel left of a chunk.
#if CHANNEL_DECAY
using Left = PreparedChannels<Inner, CHUNK * KEY_SIZE, KEY_SIZE>;
static_assert(sizeof(Left::k_read) == KEY_PANELS * PANEL_BYTES, "tiles of keys and queries are whole panels");
struct Stage {
    alignas(1024) Left left;
    alignas(1024) unsigned char v[GROUPS][PANEL_BYTES];  // and then o

    __device__ __forceinline__ const void* k_read() const { return left.k_read; }
    __device__ __forceinline__ const void* q_read() const { return left.q_read; }
    __device__ __forceinline__ const void* k_write() const { return left.k_write; }
    __device__ __forceinline__ const Prepared& chunk() const { return left.chunk; }
    __device__ __forceinline__ const float* total() const { return left.total; }
};
#else
using Left = Prepared;
struct Stage {
    alignas(1024) unsigned char k[KEY_PANELS][PANEL_BYTES];
    alignas(1024) unsigned char q[KEY_PANELS][PANEL_BYTES];
    alignas(1024) unsigned char v[GROUPS][PANEL_BYTES];  // and then o
    alignas(1024) Left left;

    __device__ __forceinline__ const void* k_read() const { return k; }
    __device__ __forceinline__ const void* q_read() const { return q; }
    __device__ __forceinline__ const void* k_write() const { return k; }
    __device__ __forceinline__ const Prepared& chunk() const { return left; }
    __device__ __forceinline__ const float* total() const { return &left.total; }
};
#endif

struct Shared {
    Stage stages[STAGES];
    uint64_t full[STAGES], empty[STAGES];
};

// A stage of the ring, and the parity of the phase of its barriers.
struct Position {
    int slot = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++slot == STAGES) {
            slot = 0;
            parity ^= 1;
        }
    }
};

// Where the tensors of a block begin: at the first token of its row, its head and slice.
struct Tensors {
    const DATA_T *k, *q, *v;
    DATA_T* o;
    const STATE_T* state;
    STATE_T* state_out;
    const Left* chunks;
    unsigned* waiting;

    __device__ __forceinline__ Tensors(const GatedDeltaPrefill& p, const RowView& view, int head, int column) {
        begin_tensors(*this, p, view, head, column);
        const int64_t chunk = first_chunk_slot(p, view, blockIdx.z) * p.value_heads + head;
        chunks = static_cast<const Left*>(p.chunks) + chunk;
        waiting = p.waiting + chunk;
    }
};

// `valid` rows of a tile, zeros below, by the producers.
template <int PANELS>
__device__ __forceinline__ void load_tile(unsigned char (&tile)[PANELS][PANEL_BYTES], const DATA_T* source,
                                          int64_t row_stride, int valid) {
    constexpr int UNITS = PANEL / 8, STEP = PRODUCERS / UNITS;
    static_assert(STEP % 8 == 0, "the units of all rows of a thread are permuted alike");
    const int thread = int(threadIdx.x) - CONSUMERS, first = thread / UNITS, unit = thread % UNITS;
    const DATA_T* from = source + first * row_stride + unit * 8;
    unsigned char* to = tile[0] + panel_unit<CHUNK>(first, unit);
    if (valid == CHUNK) {
#pragma unroll
        for (int row = 0; row < CHUNK; row += STEP, from += STEP * row_stride)
#pragma unroll
            for (int i = 0; i < PANELS; ++i)
                copy_async_16(to + i * PANEL_BYTES + row * ROW_BYTES, from + i * PANEL, true);
    } else {
#pragma unroll 1
        for (int row = first; row < CHUNK; row += STEP, from += STEP * row_stride, to += STEP * ROW_BYTES)
#pragma unroll
            for (int i = 0; i < PANELS; ++i)
                copy_async_16(to + i * PANEL_BYTES, row < valid ? from + i * PANEL : source, row < valid);
    }
}

// `valid` rows of outputs from a tile of v to memory, each unit by the thread that load_tile() has copy the next one
// in its place.
__device__ __forceinline__ void write_tile(const unsigned char (&tile)[GROUPS][PANEL_BYTES], DATA_T* o,
                                           int64_t row_stride, int valid) {
    constexpr int UNITS = PANEL / 8, STEP = PRODUCERS / UNITS;
    const int thread = int(threadIdx.x) - CONSUMERS, first = thread / UNITS, unit = thread % UNITS;
    DATA_T* to = o + first * row_stride + unit * 8;
    const unsigned char* from = tile[0] + panel_unit<CHUNK>(first, unit);
#pragma unroll 1
    for (int row = 0; row < CHUNK; row += STEP, to += STEP * row_stride)
        if (first + row < valid) {
#pragma unroll
            for (int i = 0; i < GROUPS; ++i)
                *reinterpret_cast<uint4*>(to + i * PANEL) =
                    *reinterpret_cast<const uint4*>(from + i * PANEL_BYTES + row * ROW_BYTES);
        }
}

// The chunks of a row that the first kernel has announced. A warp asks for 32 at once: one answer takes a third of the
// time that a chunk does.
struct Announced {
    unsigned* waiting;  // of this lane's chunk
    const int stride;
    int known = 0;      // announced chunks from the next one on, whose shares have been taken back

    __device__ __forceinline__ Announced(unsigned* row, int stride)
        : waiting(row + threadIdx.x % 32 * stride), stride(stride) {}

    // Returns when the next chunk is there; `left`: chunks from that on.
    __device__ __forceinline__ void wait(int left) {
        if (known == 0) {
            const int lane = threadIdx.x % 32;
            unsigned missing;
            do {
                missing = __ballot_sync(~0u, lane >= left || readers_of(waiting) == 0);
            } while (missing & 1);
            known = missing ? __ffs(missing) - 1 : 32;
            if (lane < known) leave_as_reader(waiting);
            __syncwarp();
            waiting += known * stride;
        }
        --known;
    }
};

__device__ __forceinline__ void produce(Shared& shared, const Tensors& in, const GatedDeltaPrefill& p, int length) {
    Announced announced(in.waiting, p.value_heads);
    Position position;
    for (int first = 0; first - STAGES * CHUNK < length; first += CHUNK, position.advance()) {
        Stage& stage = shared.stages[position.slot];
        uint64_t* full = &shared.full[position.slot];
        const int valid = min(CHUNK, length - first);
        barrier_wait(&shared.empty[position.slot], position.parity ^ 1);
        const int done = first - STAGES * CHUNK;
        if (done >= 0) write_tile(stage.v, in.o + int64_t(done) * p.o_token, p.o_token, length - done);
        if (valid <= 0) continue;
#if !CHANNEL_DECAY
        load_tile(stage.k, in.k + int64_t(first) * p.k_token, p.k_token, valid);
#endif
        load_tile(stage.v, in.v + int64_t(first) * p.v_token, p.v_token, valid);
#if !CHANNEL_DECAY
        load_tile(stage.q, in.q + int64_t(first) * p.q_token, p.q_token, valid);
#endif
        barrier_arrive_after_copies(full);
        if (!CHANNEL_DECAY && threadIdx.x < CONSUMERS + 32) announced.wait((length - first + CHUNK - 1) / CHUNK);
        if (threadIdx.x == CONSUMERS) {
            const Left* chunk = in.chunks + int64_t(first / CHUNK) * p.value_heads;
            fence_for_bulk_copies();
            barrier_arrive_expecting(full, sizeof(Left));
            if constexpr (SLICES == 1)
                copy_bulk_once(&stage.left, chunk, sizeof(Left), full);
            else
                copy_bulk(&stage.left, chunk, sizeof(Left), full);
        }
        __syncwarp();
    }
}

}  // namespace

#endif
