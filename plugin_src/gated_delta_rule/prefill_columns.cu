// Second kernel of chunked prefill: a warp carries sixteen columns of one head's state through the chunks of a row.
//
// Per chunk, with what prefill_prepare.cu (or prefill_channels.cu: tiles of k and q too) left: u = (I + inverse) (beta
// (v - read * k S)), o = from_start * q S + scores u, S = total * S + k^T (write * u). Columns do not depend on each
// other, so that warps share only the tiles of k and q and the chunk's triangles, and the state stays in registers.
//
// Macros: those of prefill_state.cuh; WARPS (of a block); LOADERS (warps that only copy tiles; 0: all of them do);
// STAGES (1 or 2); ALIGNED. Grid: x covers the value heads of a key head and their SLICES, y the key heads, z the rows.
// A warp reads what it writes and nothing else of the state.
#include "gated_delta_rule/prefill_column_stages.cuh"

namespace {

constexpr int THREADS = 32 * (WARPS + LOADERS);
constexpr int LOADING_THREADS = LOADERS ? 32 * LOADERS : THREADS;

__device__ __forceinline__ void load_ahead(Stage& stage, const Tensors& in, const GatedDeltaPrefill& p, int chunk,
                                           int length) {
    const int thread = int(threadIdx.x) - (THREADS - LOADING_THREADS);
    if (thread >= 0) load_chunk<LOADING_THREADS>(stage, in, p, chunk, length, thread);
}

// k @ state and q @ state of every token. As half, columns of the state are first brought to the same size, so that
// none is too large, whatever the data.
__device__ __forceinline__ void read(const StateColumns& columns, TokenSums& k_state, TokenSums& q_state, const Key* k,
                                     const Key* q) {
    constexpr bool SIZED = CHANNEL_DECAY && sizeof(Key) == 2;
    const int lane = threadIdx.x % 32;
    const ColumnSizes sizes(SIZED ? columns.largest(0) : 0.0f, SIZED ? columns.largest(2) : 0.0f);
#pragma unroll
    for (int n = 0; n < TOKEN_TILES; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) k_state[n][i] = q_state[n][i] = 0.0f;
#pragma unroll
    for (int j = 0; j < KEY_SIZE; j += Product::K) {
        const Product::A state = SIZED ? fitted(sizes, columns.value + j / 8)
                                       : Product::a_from_accumulators(columns.value + j / 8);
#pragma unroll
        for (int n = 0; n < TOKEN_TILES; n += 2) {
            Product::B keys[2], queries[2];
            Product::load_b<Tile>(keys, k, n * 8, j, lane);
            Product::load_b<Tile>(queries, q, n * 8, j, lane);
            Product::multiply(k_state[n], state, keys[0]);
            Product::multiply(k_state[n + 1], state, keys[1]);
            Product::multiply(q_state[n], state, queries[0]);
            Product::multiply(q_state[n + 1], state, queries[1]);
        }
    }
    if (SIZED) {
        restore(sizes.back, k_state);
        restore(sizes.back, q_state);
    }
}

// One chunk of one warp.
__device__ __forceinline__ void step(StateColumns& state, const Stage& stage, const ChunkValues& v, TokenSums& o) {
    const Prepared& chunk = stage.chunk();
    TokenSums u;
    read(state, u, o, stage.k_read(), stage.q_read());
    subtract_prediction(u, chunk, [&](int n, float(&values)[4]) {
        if constexpr (PAIRED)
            ChunkValues::unpack_pairs(v.pairs(n), values);
        else
            v.load_elements(n, values);
    });
    add_earlier(u, chunk.inverse, u);
    scale_tokens(o, chunk.from_start);
    add_earlier(o, chunk.scores, u);
    scale_tokens(u, chunk.write);
    state.write(u, stage.k_write(), stage.total());
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
    finish_row<THREADS>(in, params, view, min(SLICE, VALUE_SIZE - first_column));
    if (view.length == 0) return;

    const int column = int(threadIdx.x) / 32 * COLUMNS_OF_WARP;
    const bool works = column < SLICE && (VALUE_SIZE % SLICE == 0 || first_column + column < VALUE_SIZE);
    const int chunks = (view.length + CHUNK - 1) / CHUNK;
    load_ahead(stages[0], in, params, 0, view.length);
    StateColumns state;
    if (works) state.load(in.state + column);
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const int valid = min(CHUNK, view.length - chunk * CHUNK);
        const int64_t token = int64_t(chunk) * CHUNK;
        const ChunkValues v(in.v + token * params.v_token + column, params.v_token, works ? valid : 0);
        wait_copies<0>();
        __syncthreads();
        if (STAGES == 2 && chunk + 1 < chunks)
            load_ahead(stages[(chunk + 1) % STAGES], in, params, chunk + 1, view.length);
        if (works) {
            TokenSums o;
            step(state, stages[chunk % STAGES], v, o);
            store_outputs(in.o + token * params.o_token + column, params.o_token, valid, o);
        }
        if (STAGES == 1 && chunk + 1 < chunks) {
            __syncthreads();
            load_ahead(stages[0], in, params, chunk + 1, view.length);
        }
    }
    if (works) state.store(in.state_out + column);
}
