// Second kernel of chunked prefill: a warp carries sixteen columns of one head's state through the chunks of a row.
//
// Per chunk, with what prefill_prepare.cu (or prefill_channels.cu: tiles of k and q too) left: u = (I + inverse) (beta
// (v - read * k S)), o = from_start * q S + scores u, S = total * S + k^T (write * u). Columns do not depend on each
// other, so that warps share only the tiles of k and q and the chunk's triangles, and the state stays in registers.
//
// Macros: those of prefill_state.cuh; WARPS (of a block); LOADERS (warps that only copy tiles; 0: all of them do);
// STAGES (1 or 2); ALIGNED. Grid: x covers the value heads of a key head and their SLICES, y the key heads, z the rows.
// A warp reads what it writes and nothing else of the state.
#include "common/launch.cuh"
#include "gated_delta_rule/prefill_state.cuh"
#include "gated_delta_rule/prefill_tensors.cuh"
#include "gated_delta_rule/prefill_tiles.cuh"

namespace {

constexpr int THREADS = 32 * (WARPS + LOADERS);
constexpr int LOADING_THREADS = LOADERS ? 32 * LOADERS : THREADS;
constexpr int SLICE = WARPS * COLUMNS_OF_WARP;
constexpr int SLICES = (VALUE_SIZE + SLICE - 1) / SLICE;

// What this kernel has of a chunk in shared memory; `left` is what the first kernel left in the workspace.
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

__device__ __forceinline__ void load_chunk(Stage& stage, const Tensors& in, const GatedDeltaPrefill& p, int chunk,
                                           int length) {
    const int thread = int(threadIdx.x) - (THREADS - LOADING_THREADS);
    if (thread < 0) return;
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

// One chunk of one warp.
__device__ __forceinline__ void step(StateColumns& state, const Stage& stage, const ChunkValues& v, TokenSums& o) {
    const Prepared& chunk = stage.chunk();
    const int t = threadIdx.x % 4;
    TokenSums u;
    state.read(u, o, stage.k_read(), stage.q_read());
#pragma unroll
    for (int n = 0; n < TOKEN_TILES; ++n) {
        const float2 read = *reinterpret_cast<const float2*>(chunk.read + n * 8 + 2 * t);
        const float2 beta = *reinterpret_cast<const float2*>(chunk.beta + n * 8 + 2 * t);
        float values[4];
        v.unpack(n, values);
        u[n][0] = beta.x * (values[0] - read.x * u[n][0]);
        u[n][1] = beta.y * (values[1] - read.y * u[n][1]);
        u[n][2] = beta.x * (values[2] - read.x * u[n][2]);
        u[n][3] = beta.y * (values[3] - read.y * u[n][3]);
    }
    add_earlier(u, u, chunk.inverse);
    scale_tokens(o, chunk.from_start);
    add_earlier(o, u, chunk.scores);
    scale_tokens(u, chunk.write);
    state.write(u, stage.k_write(), stage.total());
}

// Zeros at the padding tokens of a dense row; the state as it was where the row has no token.
__device__ __forceinline__ void finish_row(const Tensors& in, const GatedDeltaPrefill& p, const RowView& view,
                                           int columns) {
    for (int i = threadIdx.x; i < (view.written - view.length) * columns; i += THREADS)
        in.o[int64_t(view.length + i / columns) * p.o_token + i % columns] = from_float<DATA_T>(0.0f);
    if (view.length == 0 && in.state != in.state_out) {
        for (int i = threadIdx.x; i < KEY_SIZE * columns; i += THREADS)
            in.state_out[i / columns * VALUE_SIZE + i % columns] = in.state[i / columns * VALUE_SIZE + i % columns];
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gated_delta_rule_prefill(const __grid_constant__ GatedDeltaPrefill params) {
    extern __shared__ __align__(128) unsigned char memory[];
    Stage* stages = reinterpret_cast<Stage*>(memory);
    wait_for_earlier_kernels();
    let_later_kernels_start();
    const RowView view = row_view(params.rows, blockIdx.z);
    if (view.slot < 0) return;
    const int head = blockIdx.y * params.values_per_key + blockIdx.x / SLICES;
    const int first_column = blockIdx.x % SLICES * SLICE;
    const Tensors in(params, view, head, first_column);
    finish_row(in, params, view, min(SLICE, VALUE_SIZE - first_column));
    if (view.length == 0) return;

    const int column = int(threadIdx.x) / 32 * COLUMNS_OF_WARP;
    const bool works = column < SLICE && (VALUE_SIZE % SLICE == 0 || first_column + column < VALUE_SIZE);
    const int chunks = (view.length + CHUNK - 1) / CHUNK;
    load_chunk(stages[0], in, params, 0, view.length);
    StateColumns state;
    if (works) state.load(in.state + column);
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const int valid = min(CHUNK, view.length - chunk * CHUNK);
        const int64_t token = int64_t(chunk) * CHUNK;
        const ChunkValues v(in.v + token * params.v_token + column, params.v_token, works ? valid : 0);
        wait_copies<0>();
        __syncthreads();
        if (STAGES == 2 && chunk + 1 < chunks)
            load_chunk(stages[(chunk + 1) % STAGES], in, params, chunk + 1, view.length);
        if (works) {
            TokenSums o;
            step(state, stages[chunk % STAGES], v, o);
            store_outputs(in.o + token * params.o_token + column, params.o_token, valid, o);
        }
        if (STAGES == 1 && chunk + 1 < chunks) {
            __syncthreads();
            load_chunk(stages[0], in, params, chunk + 1, view.length);
        }
    }
    if (works) state.store(in.state_out + column);
}
