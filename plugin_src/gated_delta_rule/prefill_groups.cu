// Second kernel of chunked prefill on Hopper: a warpgroup carries 64 columns of one head's state through the chunks of
// a row.
//
// The formulas are those of prefill_columns.cu, with whole warpgroups' products: the state, differences and outputs
// stay in accumulators, and k, q and the triangles are right operands where they lie in shared memory. The last warps
// copy tiles ahead, and outputs from where the products leave them.
//
// Macros: those of prefill_group.cuh; GROUPS (1 or 2 warpgroups of a block, of one head); LOADERS (warps that copy);
// STAGES. Grid: x covers the value heads of a key head and their SLICES, y the key heads, z the rows. A thread reads
// what it writes and nothing else of the state. Rows of q, k, v and o start at multiples of 16 bytes.
//
// With one decay per head, it takes each chunk when that is announced, and may run while the first kernel still does:
// it starts once all blocks of that are past their wait for earlier kernels, so that its own wait comes last. With one
// decay per key channel it waits first; its chunks have k and q in them.
#include "common/launch.cuh"
#include "gated_delta_rule/prefill_group_stages.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace {

// With two groups a thread would have 168 of both.
constexpr int PRODUCER_REGISTERS = CHANNEL_DECAY ? 24 : 40, CONSUMER_REGISTERS = CHANNEL_DECAY ? 240 : 232;
static_assert(GROUPS == 1 || LOADERS == 4, "registers are exchanged between whole warpgroups");

// u = beta (v - read * back * u), for u = k @ state; back: of a thread's two columns.
__device__ __forceinline__ void subtract_prediction(Sums& u, const Prepared& chunk, const Operand& v,
                                                    const float (&back)[2]) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int step = 0; step < TOKEN_STEPS; ++step) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const float2 first = Product::unpack(v[step][2 * n]), second = Product::unpack(v[step][2 * n + 1]);
            const float2 read = *reinterpret_cast<const float2*>(chunk.read + (2 * step + n) * 8 + 2 * t);
            const float2 beta = *reinterpret_cast<const float2*>(chunk.beta + (2 * step + n) * 8 + 2 * t);
            float* to = u + 8 * step + 4 * n;
            to[0] = beta.x * (first.x - read.x * (back[0] * to[0]));
            to[1] = beta.y * (first.y - read.y * (back[0] * to[1]));
            to[2] = beta.x * (second.x - read.x * (back[1] * to[2]));
            to[3] = beta.y * (second.y - read.y * (back[1] * to[3]));
        }
    }
}

// sums[token] *= factors[token], and those of a thread's two columns by `back`.
__device__ __forceinline__ void scale_tokens(Sums& sums, const float* factors,
                                             const float (&back)[2] = {1.0f, 1.0f}) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < CHUNK / 8; ++n) {
        const float2 factor = *reinterpret_cast<const float2*>(factors + n * 8 + 2 * t);
        sums[4 * n] *= factor.x * back[0];
        sums[4 * n + 1] *= factor.y * back[0];
        sums[4 * n + 2] *= factor.x * back[1];
        sums[4 * n + 3] *= factor.y * back[1];
    }
}

template <typename T>
__device__ __forceinline__ void pack_tokens(Operand& to, const Sums& sums) {
#pragma unroll
    for (int j = 0; j < TOKEN_STEPS; ++j) pack_operand<T>(to[j], sums + 8 * j);
}

// The state as a left operand, at its own size or, with decays of channels, as half: columns are then brought to the
// same size, so that none is too large, whatever the data. back: from the products to their size.
struct StateBefore {
    unsigned words[KEY_STEPS][4];
    float back[2];

    __device__ __forceinline__ void pack(const GroupState& state) {
        const ColumnSizes sizes(CHANNEL_DECAY ? state.largest(0) : 0.0f, CHANNEL_DECAY ? state.largest(2) : 0.0f);
#pragma unroll
        for (int j = 0; j < KEY_STEPS; ++j) {
            float sized[8];
#pragma unroll
            for (int i = 0; i < 8; ++i)
                sized[i] = state.value[8 * j + i] * (CHANNEL_DECAY ? sizes.fit[i % 4 / 2] : 1.0f);
            pack_operand<Key>(words[j], sized);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) back[i] = CHANNEL_DECAY ? sizes.back[i] : 1.0f;
    }
};

// Lets the state decay over the chunk of a stage; not where there is no chunk left.
__device__ __forceinline__ void decay_state(GroupState& state, const Stage& stage, bool is_chunk) {
#pragma unroll
    for (int n = 0; n < KEY_SIZE / 8; ++n) {
        const float* total = stage.total() + (CHANNEL_DECAY ? n * 8 + threadIdx.x % 4 * 2 : 0);
        const float2 decay = CHANNEL_DECAY ? *reinterpret_cast<const float2*>(total) : make_float2(*total, *total);
        const float first = is_chunk ? decay.x : 1.0f, second = is_chunk ? decay.y : 1.0f;
        state.value[4 * n] *= first;
        state.value[4 * n + 1] *= second;
        state.value[4 * n + 2] *= first;
        state.value[4 * n + 3] *= second;
    }
}

// Starts predicted = k @ state, of the state as `before`, and lets the state decay.
__device__ __forceinline__ void start_prediction(Sums& predicted, StateBefore& before, GroupState& state,
                                                 const Stage& stage, bool is_chunk) {
    before.pack(state);
    decay_state(state, stage, is_chunk);
    wgmma_fence();
    GroupState::start_read(predicted, before.words, stage.k_read());
}

// The state after a chunk, whose u = k @ state at first. Ends with the last products of o in flight, which read
// `inner`.
__device__ __forceinline__ void update(GroupState& state, Sums& o, Operand& inner, Sums& u,
                                       const StateBefore& before, const Stage& stage, const Operand& v) {
    const Prepared& chunk = stage.chunk();
    Operand written;
    wgmma_fence();
    GroupState::start_read(o, before.words, stage.q_read());
    subtract_prediction(u, chunk, v, before.back);
    pack_tokens<Inner>(inner, u);
    wgmma_fence();
    start_earlier(u, inner, chunk.inverse);
    wgmma_commit();
    wgmma_wait<1>();
    in_flight(o);
    held_until_here(before.words);
    scale_tokens(o, chunk.from_start, before.back);
    wgmma_wait<0>();
    in_flight(u);
    held_until_here(inner);
    pack_tokens<Inner>(inner, u);
    scale_tokens(u, chunk.write);
    pack_tokens<Key>(written, u);
    wgmma_fence();
    state.start_write(written, stage.k_write());
    start_earlier(o, inner, chunk.scores);
    wgmma_commit();
    wgmma_wait<1>();
    in_flight(state.value);
    held_until_here(written);
}

__device__ __forceinline__ void wait_for_stage(Shared& shared, const Position& position) {
    barrier_wait(&shared.full[position.slot], position.parity);
    fence_for_wgmma();
}

// The last products of a chunk's outputs run while the next chunk begins. Outputs take the place of v, which only this
// warp's lanes read, until the producers write them to memory. The compiler keeps products in flight where no branch is
// around them and no loop carries them.
__device__ __forceinline__ void consume(Shared& shared, const Tensors& in, int length) {
    const int group = threadIdx.x / 128;
    GroupState state;
    Sums u;
    StateBefore before;
    Operand v;
    state.load(in.state + group * GROUP_COLUMNS);
    Position position;
    wait_for_stage(shared, position);
    start_prediction(u, before, state, shared.stages[0], true);
    WarpTile(shared.stages[0].v[group]).load(v);
    wgmma_wait<0>();
    in_flight(u);
    for (int first = 0; first < length; first += CHUNK) {
        const int slot = position.slot;
        Sums o, predicted;
        Operand inner;
        update(state, o, inner, u, before, shared.stages[slot], v);
        const bool more = first + CHUNK < length;
        if (more) {
            position.advance();
            wait_for_stage(shared, position);
        }
        const Stage& next = shared.stages[position.slot];  // after the last chunk that one, for an unused product
        start_prediction(predicted, before, state, next, more);
        wgmma_wait<1>();
        in_flight(o);
        held_until_here(inner);
        WarpTile(shared.stages[slot].v[group]).store(o);
        __syncwarp();
        barrier_arrive_of_warp(&shared.empty[slot]);
        WarpTile(shared.stages[position.slot].v[group]).load(v);
        wgmma_wait<0>();
        in_flight(predicted);
#pragma unroll
        for (int i = 0; i < CHUNK / 2; ++i) u[i] = predicted[i];
    }
    state.store(in.state_out + group * GROUP_COLUMNS);
}

// Rows with padding and rows without tokens. They alone wait for the first kernel before they begin: behind the split
// of the registers this would spill.
__device__ __forceinline__ void finish_short_row(const Tensors& in, const GatedDeltaPrefill& p, const RowView& view) {
    if (view.length > 0 && view.length == view.written) return;
    wait_for_earlier_kernels();
    finish_row<THREADS>(in, p, view, SLICE);
}

}  // namespace

#endif

extern "C" __global__ void __launch_bounds__(128 * GROUPS + 32 * LOADERS, 1)
gated_delta_rule_prefill_groups(const __grid_constant__ GatedDeltaPrefill params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(&shared.full[s], PRODUCERS + 1);  // copies of each producing thread, and of the chunk
            barrier_init(&shared.empty[s], 4 * GROUPS);
        }
        barriers_publish();
    }
    if (CHANNEL_DECAY) wait_for_earlier_kernels();  // chunks are not announced
    let_later_kernels_start();
    const RowView view = row_view(params.rows, blockIdx.z);
    if (view.slot < 0) return wait_for_earlier_kernels();
    const int head = blockIdx.y * params.values_per_key + blockIdx.x / SLICES;
    const Tensors in(params, view, head, blockIdx.x % SLICES * SLICE);
    finish_short_row(in, params, view);
    if (view.length == 0) return;
    __syncthreads();
    // The same value in all lanes, which the compiler is to know: it waits after each product of a branch that might
    // diverge.
    if (__shfl_sync(~0u, int(threadIdx.x) / 32, 0) >= CONSUMERS / 32) {
        if constexpr (GROUPS == 2) shrink_registers<PRODUCER_REGISTERS>();
        produce(shared, in, params, view.length);
    } else {
        if constexpr (GROUPS == 2) grow_registers<CONSUMER_REGISTERS>();
        consume(shared, in, __shfl_sync(~0u, view.length, 0));
    }
    wait_for_earlier_kernels();
#endif
}
