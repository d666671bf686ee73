// One token per row, states with rings: a state is read in every step and written once in RING steps.
//
// With S the state in memory, tokens 1 to m in the ring, token t = m + 1, g_j the log decay of token j, w_j what it
// writes, and E_j = exp(g_{j+1} + ... + g_t) (one a head, or one a key channel):
//     k_t S' = k_t exp(g_1 + ... + g_t) S + sum over j <= m of (k_t E_j k_j) w_j, and so for q_t
//     w_t    = beta (v_t - k_t S'),   o_t = q_t S' + (q_t k_t) w_t
// Token t is added to the ring; if it is the RING-th, all of them are written into the state. For other rows, as the
// parameters say, the ring is flushed into the state. Another kernel updates the ring's length, since all blocks of a
// row read it here. Dense rows have a token axis of one token at most, or are flushed.
//
// Macros: those of decode_token.cuh; AT_ONCE as in decode_slices.cu; DENSE (rows are dense); RING (at most 16). Grid:
// as of decode_slices.cu.
#include "common/async_copy.cuh"
#include "common/launch.cuh"
#include "common/ring.cuh"
#include "gated_delta_rule/decode_token.cuh"
#include "gated_delta_rule/ring_params.cuh"

namespace {

constexpr int DECAYS_OF_HEAD = CHANNEL_DECAY ? KEY_SIZE : 1;
constexpr int KEYS_OF_LANE = (KEY_SIZE + 31) / 32;                  // lane l has the keys l, l + 32, ...
constexpr int KEYS_OF_THREAD = (KEY_SIZE + THREADS - 1) / THREADS;  // thread t has the keys t, t + THREADS, ...
constexpr int COPY = 4;                                             // floats of one copy to shared memory

// The tokens of a ring that a block needs, and the token of the step after them.
struct SharedRing {
    alignas(16) float keys[RING][KEY_SIZE];   // E_j k_j
    alignas(16) float written[RING][SLICE];
    alignas(16) float decays[CHANNEL_DECAY ? KEY_SIZE : 4];  // of the state, one a key channel
    float k[RING], q[RING];                   // k_t E_j k_j and q_t E_j k_j: a warp has those of its tokens
};

__device__ __forceinline__ int64_t token_at(const RowView& view, int64_t row, int64_t token) {
    return DENSE ? view.row * row : view.first_token * token;
}

// One head of one slot in memory.
struct Ring {
    DATA_T* k;
    float* written;
    float* decays;
    const DATA_T* token_k;
    const DATA_T* token_q;
    const float* token_decays;
    int stored;

    __device__ __forceinline__ Ring(const GatedDeltaRing& ring, const RowView& view, int head, int length) {
        const GatedDeltaDecode& p = ring.decode;
        const int64_t of_head = (view.slot * ring.value_heads + head) * RING, key_head = blockIdx.y;
        k = static_cast<DATA_T*>(ring.k) + (view.slot * ring.key_heads + key_head) * RING * KEY_SIZE;
        written = ring.written + of_head * VALUE_SIZE;
        decays = ring.decays + of_head * DECAYS_OF_HEAD;
        token_k = static_cast<const DATA_T*>(p.k) + token_at(view, p.k_row, p.k_token) + key_head * p.k_head;
        token_q = static_cast<const DATA_T*>(p.q) + token_at(view, p.q_row, p.q_token) + key_head * p.q_head;
        token_decays = p.g + token_at(view, p.g_row, p.g_token) + head * DECAYS_OF_HEAD;
        stored = length;
    }
    __device__ __forceinline__ const DATA_T* k_of(int j) const { return j < stored ? k + j * KEY_SIZE : token_k; }
    __device__ __forceinline__ const float* decays_of(int j) const {
        return j < stored ? decays + j * DECAYS_OF_HEAD : token_decays;
    }
};

// Starts the copies of what the ring's tokens have written to the columns of this block.
__device__ __forceinline__ void copy_written(SharedRing& shared, const Ring& ring) {
    const int first = blockIdx.x % SLICES * SLICE;
    for (int i = threadIdx.x; i < ring.stored * (SLICE / COPY); i += THREADS) {
        const int j = i / (SLICE / COPY), column = i % (SLICE / COPY) * COPY;
        if (EXACT_COLUMNS || first + column < VALUE_SIZE)
            copy_async_16(&shared.written[j][column], ring.written + j * VALUE_SIZE + first + column, true);
    }
}

// Puts E_j k_j of `count` tokens where the block finds them. Returns the decay of the state, of one decay a head.
__device__ __forceinline__ float decay_keys(SharedRing& shared, const Ring& ring, int count) {
    DATA_T k[KEYS_OF_THREAD][RING];
    float g[KEYS_OF_THREAD][RING];
#pragma unroll
    for (int c = 0; c < KEYS_OF_THREAD; ++c) {
        const int at = c * THREADS + threadIdx.x;
        if (at >= KEY_SIZE) break;
#pragma unroll
        for (int j = 0; j < RING; ++j) {
            if (j < count) k[c][j] = ring.k_of(j)[at];
            if (CHANNEL_DECAY) g[c][j] = j < count ? ring.decays_of(j)[at] : 0.0f;
        }
    }
    const int lane = threadIdx.x % 32;
    const RingDecay of_head(!CHANNEL_DECAY && lane < count ? ring.decays_of(lane)[0] : 0.0f);
    float later[KEYS_OF_THREAD] = {};  // the sum of the decays after token j
#pragma unroll
    for (int j = RING - 1; j >= 0; --j) {
        const float decay = CHANNEL_DECAY ? 1.0f : __shfl_sync(0xffffffffu, of_head.of_token, j);
#pragma unroll
        for (int c = 0; c < KEYS_OF_THREAD; ++c) {
            const int at = c * THREADS + threadIdx.x;
            if (j < count && at < KEY_SIZE)
                shared.keys[j][at] = (CHANNEL_DECAY ? expf(later[c]) : decay) * to_float(k[c][j]);
            if (CHANNEL_DECAY && at < KEY_SIZE) later[c] += g[c][j];
        }
    }
    if (CHANNEL_DECAY) {
#pragma unroll
        for (int c = 0; c < KEYS_OF_THREAD; ++c)
            if (c * THREADS + threadIdx.x < KEY_SIZE) shared.decays[c * THREADS + threadIdx.x] = expf(later[c]);
    }
    return of_head.of_state;
}

// The products of k_t and q_t with this warp's tokens: w, w + WARPS, ...
__device__ __forceinline__ void weigh_tokens(SharedRing& shared, const Ring& ring) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp >= ring.stored) return;
    float token_k[KEYS_OF_LANE], token_q[KEYS_OF_LANE];
#pragma unroll
    for (int c = 0; c < KEYS_OF_LANE; ++c) {
        const int at = c * 32 + lane;
        token_k[c] = at < KEY_SIZE ? to_float(ring.token_k[at]) : 0.0f;
        token_q[c] = at < KEY_SIZE ? to_float(ring.token_q[at]) : 0.0f;
    }
    for (int j = warp; j < ring.stored; j += WARPS) {
        float k = 0.0f, q = 0.0f;
#pragma unroll
        for (int c = 0; c < KEYS_OF_LANE; ++c) {
            const float key = c * 32 + lane < KEY_SIZE ? shared.keys[j][c * 32 + lane] : 0.0f;
            k = fmaf(token_k[c], key, k);
            q = fmaf(token_q[c], key, q);
        }
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) {
            k += __shfl_xor_sync(0xffffffffu, k, distance);
            q += __shfl_xor_sync(0xffffffffu, q, distance);
        }
        if (lane == 0) {
            shared.k[j] = k;
            shared.q[j] = q;
        }
    }
    __syncwarp();
}

// Puts the sums of each warp where the whole block finds them, decayed and with those of the warp's tokens.
__device__ __forceinline__ void share_ring_sums(BlockSums& sums_of_warps, const SharedRing& shared,
                                                const StateSlice& state, const Token& token, const Ring& ring,
                                                const float (&decay)[Token::DECAYS], const Place& at) {
    float k[ROWS], q[ROWS];
    token.k.unpack(k);
    token.q.unpack(q);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sums[SUMS];
    add_sums(sums_of_warps, state, k, q, decay, at, sums);
    const int first = lane / COLUMN_LANES * SUMS_KEPT;
#pragma unroll
    for (int i = 0; i < SUMS_KEPT; ++i) {
        const int which = (first + i) / ACCESS, column = at.column_lane * ACCESS + (first + i) % ACCESS;
        float sum = CHANNEL_DECAY ? sums[i] : decay[0] * sums[i];
        for (int j = warp; j < ring.stored; j += WARPS)
            sum = fmaf(which ? shared.q[j] : shared.k[j], shared.written[j][column], sum);
        sums_of_warps.columns[warp][which][column] = sum;
    }
}

// state = decay * state + sum over the tokens of E_j k_j times written_j.
__device__ __forceinline__ void flush(StateSlice& state, const SharedRing& shared, int count,
                                      const float (&decay)[Token::DECAYS], const Place& at) {
    float values[ROWS][ACCESS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        state.rows[i].unpack(values[i]);
#pragma unroll
        for (int e = 0; e < ACCESS; ++e) values[i][e] *= decay[CHANNEL_DECAY ? i : 0];
    }
#pragma unroll 2
    for (int j = 0; j < count; ++j) {
        float written[ACCESS];
#pragma unroll
        for (int e = 0; e < ACCESS; ++e) written[e] = shared.written[j][at.column_lane * ACCESS + e];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const float key = EXACT_ROWS || at.row < KEY_SIZE ? shared.keys[j][at.row + i] : 0.0f;
#pragma unroll
            for (int e = 0; e < ACCESS; ++e) values[i][e] = fmaf(key, written[e], values[i][e]);
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) state.rows[i].pack(values[i]);
}

// The token of the step becomes the last one of the ring. Several heads share its key, several blocks its decays.
__device__ __forceinline__ void store_token(const Ring& ring, const BlockSums& shared) {
    const int j = ring.stored;
    if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < KEY_SIZE; i += THREADS) ring.k[j * KEY_SIZE + i] = ring.token_k[i];
    if (blockIdx.x % SLICES == 0)
        for (int i = threadIdx.x; i < DECAYS_OF_HEAD; i += THREADS)
            ring.decays[j * DECAYS_OF_HEAD + i] = ring.token_decays[i];
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i)
        if (Place::finishes(i))
            ring.written[j * VALUE_SIZE + Place::finished_column(i)] = shared.written[threadIdx.x + i * THREADS];
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE / THREADS)
gated_delta_rule_ring(const __grid_constant__ GatedDeltaRing ring_params) {
    __shared__ BlockSums sums;
    __shared__ SharedRing shared;
    const GatedDeltaDecode& params = ring_params.decode;
    const int head = blockIdx.y * params.values_per_key + blockIdx.x / SLICES;
    wait_for_earlier_kernels();
    let_later_kernels_start();
    RowView view = row_view(params.rows, blockIdx.z);
    if (view.slot < 0) return;
    if (view.length == 0 && !ring_params.flushes_empty) {
        if (!DENSE || ring_params.most_added == 0) return;
        DATA_T* o = static_cast<DATA_T*>(params.o) + view.row * params.o_row + head * params.o_head;
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i)
            if (Place::finishes(i)) o[Place::finished_column(i)] = from_float<DATA_T>(0.0f);
        return;
    }
    if (view.length > ring_params.most_added) view.length = 0;  // the ring is flushed
    const bool has_token = view.length > 0;
    const Ring ring(ring_params, view, head, stored_tokens(ring_params.lengths, view.slot, RING));
    const int count = ring.stored + has_token;
    if (count == 0) return;

    const Place at;
    const int64_t head_state = int64_t(head) * KEY_SIZE * VALUE_SIZE;
    STATE_T* state_out = static_cast<STATE_T*>(params.state_out) + view.slot * params.state_out_slot + head_state;
    StateSlice state;
    state.load(static_cast<const STATE_T*>(params.state) + view.slot * params.state_slot + head_state, at);
    Token token;
    if (has_token) token.load(params, view, 0, head, at);
    copy_written(shared, ring);
    commit_copies();
    float decay[Token::DECAYS];
    decay[0] = decay_keys(shared, ring, count);
    wait_copies<0>();
    __syncthreads();
    if (CHANNEL_DECAY) {
#pragma unroll
        for (int i = 0; i < Token::DECAYS; ++i)
            decay[i] = EXACT_ROWS || at.row < KEY_SIZE ? shared.decays[CHANNEL_DECAY ? at.row + i : 0] : 0.0f;
    }
    if (has_token) {
        weigh_tokens(shared, ring);
        share_ring_sums(sums, shared, state, token, ring, decay, at);
        __syncthreads();
        DATA_T* o = static_cast<DATA_T*>(params.o) + token_at(view, params.o_row, params.o_token) +
                    head * params.o_head;
        finish_columns(sums, token, params.scale, 1.0f, o);
        if (count < RING) {
            store_token(ring, sums);
            return;
        }
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i)
            if (Place::finishes(i))
                shared.written[RING - 1][threadIdx.x + i * THREADS] = sums.written[threadIdx.x + i * THREADS];
        __syncthreads();
    }
    flush(state, shared, count, decay, at);
    state.store(state_out, at);
}
