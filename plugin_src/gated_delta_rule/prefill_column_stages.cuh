// A block's chunks in shared memory, and its row, for prefill_columns.cu and prefill_column_pairs.cu.
//
// Macros: those of prefill_state.cuh; WARPS (that carry columns of the state).
#pragma once

#include "common/launch.cuh"
#include "gated_delta_rule/prefill_state.cuh"
#include "gated_delta_rule/prefill_tensors.cuh"
#include "gated_delta_rule/prefill_tiles.cuh"

namespace {

constexpr int SLICE = WARPS * COLUMNS_OF_WARP;
constexpr int SLICES = (VALUE_SIZE + SLICE - 1) / SLICE;

// What these kernels have of a chunk in shared memory; `left` is what the first kernel left in the workspace.
#if CHANNEL_DECAY
using Left = Channels;
struct Stage {
    Left left;

    __device__ __forceinline__ const Key* k_read() const { return left.k_read; }
    __device__ __forceinline__ const Key* q_read() const { return left.q_read; }
    __device__ __forceinline__ const Key* k_write() const { return left.k_write; }
    __device__ __forceinline__ const Prepared& chunk() const { return left.chunk; }
    __device__ __forceinline__ const float* total() const { return left.total; }
};
#else
using Left = Prepared;
struct Stage {
    alignas(128) DATA_T k[Tile::elements(CHUNK)];
    alignas(128) DATA_T q[Tile::elements(CHUNK)];
    alignas(128) Left left;

    __device__ __forceinline__ const DATA_T* k_read() const { return k; }
    __device__ __forceinline__ const DATA_T* q_read() const { return q; }
    __device__ __forceinline__ const DATA_T* k_write() const { return k; }
    __device__ __forceinline__ const Prepared& chunk() const { return left; }
    __device__ __forceinline__ const float* total() const { return &left.total; }
};
#endif

// Where the tensors of a block begin: at the first token of its row, its head and slice.
struct Tensors {
    const DATA_T *k, *q, *v;
    DATA_T* o;
    const STATE_T* state;
    STATE_T* state_out;
    const Left* chunks;

    __device__ __forceinline__ Tensors(const GatedDeltaPrefill& p, const RowView& view, int head, int column) {
        begin_tensors(*this, p, view, head, column);
        chunks = static_cast<const Left*>(p.chunks) + first_chunk_slot(p, view, blockIdx.z) * p.value_heads + head;
    }
};

// Starts to copy a chunk, by LOADING_THREADS threads, of which this is number `thread`.
template <int LOADING_THREADS>
__device__ __forceinline__ void load_chunk(Stage& stage, const Tensors& in, const GatedDeltaPrefill& p, int chunk,
                                           int length, int thread) {
#if !CHANNEL_DECAY
    const int64_t token = int64_t(chunk) * CHUNK;
    const int valid = min(CHUNK, length - chunk * CHUNK);
    load_tokens<DATA_T, KEY_SIZE, LOADING_THREADS, ALIGNED>(stage.k, in.k + token * p.k_token, p.k_token, valid,
                                                            thread);
    load_tokens<DATA_T, KEY_SIZE, LOADING_THREADS, ALIGNED>(stage.q, in.q + token * p.q_token, p.q_token, valid,
                                                            thread);
#endif
    const unsigned char* from = reinterpret_cast<const unsigned char*>(in.chunks + int64_t(chunk) * p.value_heads);
    unsigned char* to = reinterpret_cast<unsigned char*>(&stage.left);
    for (int i = thread * 16; i < int(sizeof(Left)); i += LOADING_THREADS * 16) copy_async_16(to + i, from + i, true);
    commit_copies();
}

}  // namespace
