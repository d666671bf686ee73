// Second kernel of chunked prefill with more warps for the same columns of one head's state: a warp carries sixteen
// columns of the state through the chunks of a row, and others compute the outputs at the same time.
//
// The formulas are those of prefill_columns.cu. What the warps of the outputs need of the registers of the others, the
// state before a chunk and the chunk's differences u, comes through shared memory as left operands. Only the products
// of the state follow each other from chunk to chunk; those of the outputs run beside them.
//
// Macros: those of prefill_state.cuh, for 16 bits; WARPS (that carry columns of the state; as many compute outputs, and
// LOADERS only copy tiles). Grid: as prefill_columns.cu. A warp reads what it writes and nothing else of the state.
#include "gated_delta_rule/prefill_column_exchange.cuh"

namespace {

constexpr int LOADERS = 4;
constexpr int THREADS = 32 * (2 * WARPS + LOADERS), LOADING_THREADS = 32 * LOADERS;

struct Row {
    const Tensors& in;
    const GatedDeltaPrefill& p;
    Stage* stages;
    const int length, chunks;

    __device__ __forceinline__ int valid(int chunk) const { return min(CHUNK, length - chunk * CHUNK); }
    __device__ __forceinline__ void load(int chunk) const {
        if (chunk < chunks)
            load_chunk<LOADING_THREADS>(stages[chunk % 2], in, p, chunk, length,
                                        int(threadIdx.x) - (THREADS - LOADING_THREADS));
    }
    // Once the chunk is in shared memory, and all warps have left the chunk before it.
    __device__ __forceinline__ const Stage& stage(int chunk) const {
        wait_copies<0>();
        __syncthreads();
        return stages[chunk % 2];
    }
    __device__ __forceinline__ ChunkValues values(int chunk, int column) const {
        const int64_t token = int64_t(chunk) * CHUNK;
        return ChunkValues(in.v + token * p.v_token + column, p.v_token, chunk < chunks ? valid(chunk) : 0);
    }
};

// A warp of the state.
__device__ __forceinline__ void carry(const Row& row, Exchange& exchange, int warp) {
    StateColumns state;
    state.load(row.in.state + warp * COLUMNS_OF_WARP);
    exchange.put_state(state);
    const Team team(warp);
    for (int chunk = 0; chunk < row.chunks; ++chunk) {
        const Stage& stage = row.stage(chunk);
        TokenSums u;
        read_state(u, exchange, stage.k_read());
        subtract_prediction(u, stage.chunk(), [&](int n, float(&v)[4]) { exchange.take_values(n, v); });
        add_earlier(u, stage.chunk().inverse, u);
        exchange.put_differences(u);
        team.put_differences();
        scale_tokens(u, stage.chunk().write);
        state.write(u, stage.k_write(), stage.total());
        team.wait_for_readers();
        exchange.put_state(state);
    }
    state.store(row.in.state_out + warp * COLUMNS_OF_WARP);
}

// A warp of the outputs, which also loads the values of the next chunk.
__device__ __forceinline__ void read(const Row& row, Exchange& exchange, int reader) {
    const int lane = threadIdx.x % 32, column = reader * COLUMNS_OF_WARP;
    const Team team(reader);
    exchange.put_values(row.values(0, column));
    for (int chunk = 0; chunk < row.chunks; ++chunk) {
        const Stage& stage = row.stage(chunk);
        TokenSums o;
        read_state(o, exchange, stage.q_read());
        team.leave_state();
        const ChunkValues next = row.values(chunk + 1, column);
        scale_tokens(o, stage.chunk().from_start);
        team.wait_for_differences();
        add_earlier(o, stage.chunk().scores,
                    [&](int k) { return Exchange::taken<InnerProduct::A>(exchange.tokens[k / BLOCK][lane]); });
        exchange.put_values(next);
        store_outputs(row.in.o + int64_t(chunk) * CHUNK * row.p.o_token + column, row.p.o_token, row.valid(chunk), o);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gated_delta_rule_prefill_pairs(const __grid_constant__ GatedDeltaPrefill params) {
    extern __shared__ __align__(128) unsigned char memory[];
    Stage* stages = reinterpret_cast<Stage*>(memory);
    Exchange* exchanges = reinterpret_cast<Exchange*>(stages + 2);
    wait_for_earlier_kernels();
    let_later_kernels_start();
    const RowView view = row_view(params.rows, blockIdx.z);
    if (view.slot < 0) return;
    const int head = blockIdx.y * params.values_per_key + blockIdx.x / SLICES;
    const int first_column = blockIdx.x % SLICES * SLICE;
    const Tensors in(params, view, head, first_column);
    finish_row<THREADS>(in, params, view, min(SLICE, VALUE_SIZE - first_column));
    if (view.length == 0) return;

    const Row row = {in, params, stages, view.length, (view.length + CHUNK - 1) / CHUNK};
    const int warp = threadIdx.x / 32, reader = warp - WARPS;
    const auto has_columns = [&](int from) {
        return VALUE_SIZE % SLICE == 0 || first_column + from * COLUMNS_OF_WARP < VALUE_SIZE;
    };
    if (warp < WARPS && has_columns(warp)) return carry(row, exchanges[warp], warp);
    if (warp >= WARPS && reader < WARPS && has_columns(reader)) return read(row, exchanges[reader], reader);
    const bool loads = warp >= 2 * WARPS;
    if (loads) row.load(0);
    for (int chunk = 0; chunk < row.chunks; ++chunk) {
        row.stage(chunk);
        if (loads) row.load(chunk + 1);
    }
}
