// Few tokens a row: a block owns a slice of columns of one head's state, over all rows, between its one read and write.
//
// With d the decay, k' = k / |k| and q' = scale * q / |q|: u = beta (v - d k' S), S_new = d S + k' u, and
// o = q' S_new = d q' S + (q' k') u, so that both products need only the state before the update. They are added up at
// once: over a thread's rows, its warp's lanes, then the block's warps in shared memory. Norms are factors of the sums.
//
// Macros: those of decode_slice.cuh; CHANNEL_DECAY (one decay a row of the state, else one a head); NORMED (k and q are
// divided by their norm); SPECULATIVE (the state after each token is stored in a slot of that token); KEY_ACCESS
// (elements of one access to q and k, a divisor of ROWS); MANY (rows of more than one token); AT_ONCE
// (threads of a multiprocessor that registers are to allow). Grid: x covers the value heads of a key head and their
// SLICES, y the key heads, z the rows.
// A thread reads what it writes and nothing else of the state, so that it may be updated in place.
#include "common/launch.cuh"
#include "gated_delta_rule/decode_params.cuh"
#include "gated_delta_rule/decode_slice.cuh"

namespace {

constexpr float NORM_EPSILON = 1e-6f;

// A run of elements of one tensor in its packed form.
template <typename T, int COUNT, int WIDTH>
struct Run {
    Access<T, WIDTH> parts[COUNT / WIDTH] = {};

    __device__ __forceinline__ void load(const T* from) {
#pragma unroll
        for (int i = 0; i < COUNT; i += WIDTH) parts[i / WIDTH].load(from + i);
    }
    __device__ __forceinline__ void unpack(float (&to)[COUNT]) const {
#pragma unroll
        for (int i = 0; i < COUNT; i += WIDTH) parts[i / WIDTH].unpack(to + i);
    }
};

// What a thread needs of one token. Loading and computing are apart, so that all loads come first.
struct Token {
    static constexpr int DECAYS = CHANNEL_DECAY ? ROWS : 1;
    Run<DATA_T, ROWS, KEY_ACCESS> q, k;
    DATA_T v[COLUMNS];  // of the columns that the thread finishes
    float g[DECAYS] = {};
    DATA_T beta;

    __device__ __forceinline__ void load(const GatedDeltaDecode& p, const RowView& view, int index, int head,
                                         const Place& at) {
        const int64_t token = view.first_token + index;
        const float* decay = p.g + view.row * p.g_row + token * p.g_token + head * (CHANNEL_DECAY ? KEY_SIZE : 1);
        if (EXACT_ROWS || at.row < KEY_SIZE) {
            q.load(static_cast<const DATA_T*>(p.q) + view.row * p.q_row + token * p.q_token + blockIdx.y * p.q_head + at.row);
            k.load(static_cast<const DATA_T*>(p.k) + view.row * p.k_row + token * p.k_token + blockIdx.y * p.k_head + at.row);
        }
#pragma unroll
        for (int i = 0; i < DECAYS; ++i)
            if (!CHANNEL_DECAY || EXACT_ROWS || at.row < KEY_SIZE) g[i] = decay[CHANNEL_DECAY ? at.row + i : 0];
        const DATA_T* value = static_cast<const DATA_T*>(p.v) + view.row * p.v_row + token * p.v_token + head * p.v_head;
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i)
            if (Place::finishes(i)) v[i] = value[Place::finished_column(i)];
        beta = static_cast<const DATA_T*>(p.beta)[view.row * p.beta_row + token * p.beta_token + head];
    }
};

// Puts the sums of each warp where the whole block finds them.
__device__ __forceinline__ void share_sums(BlockSums& shared, const StateSlice& state, const float (&k)[ROWS],
                                           const float (&q)[ROWS], const float (&decay)[Token::DECAYS], const Place& at) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float products[3] = {};
    float read_k[ROWS], read_q[ROWS], sums[SUMS] = {};
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        products[0] = fmaf(k[i], k[i], products[0]);
        products[1] = fmaf(q[i], q[i], products[1]);
        products[2] = fmaf(q[i], k[i], products[2]);
        read_k[i] = CHANNEL_DECAY ? k[i] * decay[CHANNEL_DECAY ? i : 0] : k[i];
        read_q[i] = CHANNEL_DECAY ? q[i] * decay[CHANNEL_DECAY ? i : 0] : q[i];
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) products[i] = sum_of_rows(products[i]);
    if (lane == 0) *reinterpret_cast<float4*>(shared.products[warp]) = make_float4(products[0], products[1], products[2], 0.0f);
    state.add_products(sums, read_k, read_q);
    reduce_over_rows(sums, lane);
    const int first = lane / COLUMN_LANES * SUMS_KEPT;
#pragma unroll
    for (int i = 0; i < SUMS_KEPT; ++i)
        shared.columns[warp][(first + i) / ACCESS][at.column_lane * ACCESS + (first + i) % ACCESS] = sums[i];
}

// What q and k are multiplied by, and q @ k without that.
struct Factors {
    float q, k, q_k;

    __device__ __forceinline__ Factors(const BlockSums& shared, float scale) {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float4 products = *reinterpret_cast<const float4*>(shared.products[w]);
            sum.x += products.x;
            sum.y += products.y;
            sum.z += products.z;
        }
        k = NORMED ? rsqrtf(sum.x + NORM_EPSILON) : 1.0f;
        q = NORMED ? scale * rsqrtf(sum.y + NORM_EPSILON) : scale;
        q_k = sum.z;
    }
};

// Output and written difference of the columns that this thread finishes. decay: of the head; 1 where the sums have it.
__device__ __forceinline__ void finish_columns(BlockSums& shared, const Token& token, float scale, float decay, DATA_T* o) {
    const Factors factors(shared, scale);
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) {
        if (!Place::finishes(i)) continue;
        const int c = threadIdx.x + i * THREADS;
        float k_state = 0.0f, q_state = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            k_state += shared.columns[w][0][c];
            q_state += shared.columns[w][1][c];
        }
        const float difference = to_float(token.v[i]) - decay * factors.k * k_state;
        const float written = factors.k * to_float(token.beta) * difference;
        shared.written[c] = written;
        o[Place::finished_column(i)] = from_float<DATA_T>(factors.q * fmaf(factors.q_k, written, decay * q_state));
    }
}

// One token: its output, and the state after it. A second call may follow at once: what it writes to shared memory first was
// last read before this one's second barrier.
__device__ __forceinline__ void step(BlockSums& shared, StateSlice& state, const Token& token, float scale, DATA_T* o, const Place& at) {
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
        *reinterpret_cast<float4*>(written + e) = *reinterpret_cast<const float4*>(shared.written + at.column_lane * ACCESS + e);
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

    DATA_T* o = static_cast<DATA_T*>(params.o) + view.row * params.o_row + view.first_token * params.o_token + head * params.o_head;
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
