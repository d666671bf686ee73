// Few tokens a row: a block owns a slice of columns of one head's state, over all rows, between its one read and write.
//
// With d the decay, k' = k / |k| and q' = scale * q / |q|: u = beta (v - d k' S), S_new = d S + k' u, and
// o = q' S_new = d q' S + (q' k') u, so that both products need only the state before the update. They are added up at
// once: over a thread's rows, its warp's lanes, then the block's warps in shared memory. Norms are factors of the sums.
//
// Macros: those of decode_token.cuh; SPECULATIVE (the state after each token is stored in a slot of that token); MANY
// (rows of more than one token); AT_ONCE (threads of a multiprocessor; limits the registers). Grid: x covers the
// value heads of a key head and their SLICES, y the key heads, z the rows.
// A thread reads what it writes and nothing else of the state, so that it may be updated in place.
#include "common/launch.cuh"
#include "gated_delta_rule/decode_token.cuh"

namespace {

// Puts the sums of each warp where the whole block finds them.
__device__ __forceinline__ void share_sums(BlockSums& shared, const StateSlice& state, const float (&k)[ROWS],
                                           const float (&q)[ROWS], const float (&decay)[Token::DECAYS],
                                           const Place& at) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sums[SUMS];
    add_sums(shared, state, k, q, decay, at, sums);
    const int first = lane / COLUMN_LANES * SUMS_KEPT;
#pragma unroll
    for (int i = 0; i < SUMS_KEPT; ++i)
        shared.columns[warp][(first + i) / ACCESS][at.column_lane * ACCESS + (first + i) % ACCESS] = sums[i];
}

// One token: its output, and the state after it. A second call may follow at once: what it writes to shared memory
// first was last read before this one's second barrier.
__device__ __forceinline__ void step(BlockSums& shared, StateSlice& state, const Token& token, float scale, DATA_T* o,
                                     const Place& at) {
    float decay[Token::DECAYS], k[ROWS], q[ROWS], written[ACCESS];
#pragma unroll
    for (int i = 0; i < Token::DECAYS; ++i) decay[i] = expf(token.g[i]);
    token.k.unpack(k);
    token.q.unpack(q);
    share_sums(shared, state, k, q, decay, at);
    __syncthreads();
    finish_columns(shared, token, scale, CHANNEL_DECAY ? 1.0f : decay[0], o);
    __syncthreads();
#pragma unroll
    for (int e = 0; e < ACCESS; e += 4)
        *reinterpret_cast<float4*>(written + e) =
            *reinterpret_cast<const float4*>(shared.written + at.column_lane * ACCESS + e);
    state.update(decay, k, written);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE / THREADS)
gated_delta_rule_decode(const __grid_constant__ GatedDeltaDecode params) {
    __shared__ BlockSums shared;
    const int head = blockIdx.y * params.values_per_key + blockIdx.x / SLICES;
    wait_for_earlier_kernels();
    // Not before: blocks of the next kernel would take multiprocessors from this one's while those still wait.
    let_later_kernels_start();
    const RowView view = row_view(params.rows, blockIdx.z);
    if (view.slot < 0) return;

    const Place at;
    const int64_t head_state = int64_t(head) * KEY_SIZE * VALUE_SIZE;
    StateSlice state;
    state.load(static_cast<const STATE_T*>(params.state) + view.slot * params.state_slot + head_state, at);
    Token token;
    // A dense row has a token to read even where its length is 0: these loads need not wait for the length.
    if (view.written > 0) token.load(params, view, 0, head, at);

    DATA_T* o = static_cast<DATA_T*>(params.o) + view.row * params.o_row + view.first_token * params.o_token +
                head * params.o_head;
    const int length = MANY ? view.length : min(view.length, 1);
    for (int t = 0; t < length; ++t, o += params.o_token) {
        const Token now = token;
        if (MANY && t + 1 < length) token.load(params, view, t + 1, head, at);
        step(shared, state, now, params.scale, o, at);
        if (SPECULATIVE) {
            const int slot = draft_slot(params.rows, blockIdx.z, t);
            if (slot >= 0)
                state.store(static_cast<STATE_T*>(params.state_out) + slot * params.state_out_slot + head_state, at);
        }
    }
    if (SPECULATIVE) return;
    for (int t = length; t < view.written; ++t, o += params.o_token) {
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i)
            if (Place::finishes(i)) o[Place::finished_column(i)] = from_float<DATA_T>(0.0f);
    }
    state.store(static_cast<STATE_T*>(params.state_out) + view.slot * params.state_out_slot + head_state, at);
}
