// decode_ring.cu for many large states (sm_90 and up): persistent blocks, and states that arrive by bulk copies.
//
// A warp owns 16 columns of a head. A producer has the products of k_t and q_t with the keys of the ring ready, so that
// a warp reads the state once from shared memory, and a second time only where it is written.
//
// Macros: DATA_T; NORMED (k and q are divided by their norm); SHARED_BYTES (of the launch); those of ring_stream.cuh.
// States are float, of 128 columns, and decays one a head. Grid: any number of blocks.
#include "common/access.cuh"
#include "gated_delta_rule/ring_stream.cuh"

#if __CUDA_ARCH__ >= 900

namespace {

constexpr int COLUMNS = VALUE_SIZE / WARPS;  // of a warp
constexpr int ACCESS = 4;                    // columns of a lane
constexpr int COLUMN_LANES = COLUMNS / ACCESS;
constexpr int ROW_LANES = 32 / COLUMN_LANES;
constexpr int LANE_ROWS = CHUNK_ROWS / ROW_LANES;  // row lane r has the rows r, r + ROW_LANES, ... of a chunk
constexpr int KEYS = KEY_SIZE / 32;                // of a producer's lane, neighbours
constexpr int VALUES = VALUE_SIZE / 32;
constexpr float NORM_EPSILON = 1e-6f;
static_assert(2 * ACCESS == ROW_LANES, "lanes 0 to 15 keep the sums of k, the others those of q");

// What a producer computes for one head.
struct Tokens {
    alignas(16) float written[RING][VALUE_SIZE];  // by the tokens of the ring, and the last by this one
    alignas(16) float2 k_q[KEY_SIZE];             // of the token
    alignas(16) DATA_T keys[RING][KEY_SIZE];      // where the state is written
    float v[VALUE_SIZE];
    float weights[32];    // of written[j]: E_j k_t k_j in lane j, E_j q_t k_j in lane 16 + j
    float decays[RING];   // E_j
    float state_decay;
    float k_factor, q_factor, q_k, beta;
};

struct Shared {
    alignas(128) char chunks[STAGES][CHUNK_BYTES];
    Tokens tokens[PRODUCERS];
    StreamBarriers barriers;
};

__device__ __forceinline__ const DATA_T* token_of(const void* tensor, const RingWork& work, int64_t row, int64_t token,
                                                  int64_t head) {
    return static_cast<const DATA_T*>(tensor) + work.token_at(row, token) + head;
}

// Prepares the tokens of one head. use: how often this producer has done so before.
__device__ __forceinline__ void prepare(Tokens& tokens, StreamBarriers& barriers, int producer, int use,
                                        const GatedDeltaRing& ring, const RingWork& work) {
    const GatedDeltaDecode& p = ring.decode;
    const int lane = threadIdx.x % 32, key_head = work.head / p.values_per_key;
    const bool first_of_key = work.head % p.values_per_key == 0;
    const int64_t of_key = (int64_t(work.slot) * ring.key_heads + key_head) * RING;
    const int64_t of_head = (int64_t(work.slot) * ring.value_heads + work.head) * RING;
    DATA_T* ring_k = static_cast<DATA_T*>(ring.k) + of_key * KEY_SIZE + lane * KEYS;

    Access<DATA_T, KEYS> stored[RING];
    DATA_T k[KEYS], q[KEYS], v[VALUES], beta = from_float<DATA_T>(0.0f);
    float g = 0.0f;
#pragma unroll
    for (int i = 0; i < KEYS; ++i) k[i] = q[i] = from_float<DATA_T>(0.0f);
#pragma unroll
    for (int i = 0; i < VALUES; ++i) v[i] = from_float<DATA_T>(0.0f);
#pragma unroll
    for (int j = 0; j < RING; ++j) {
        stored[j] = {};
        if (j < work.stored) stored[j].load(ring_k + j * KEY_SIZE);
    }
    if (lane < work.stored) g = ring.decays[of_head + lane];
    if (work.has_token) {
        const DATA_T* from_k = token_of(p.k, work, p.k_row, p.k_token, key_head * p.k_head) + lane * KEYS;
        const DATA_T* from_q = token_of(p.q, work, p.q_row, p.q_token, key_head * p.q_head) + lane * KEYS;
        const DATA_T* from_v = token_of(p.v, work, p.v_row, p.v_token, work.head * p.v_head) + lane * VALUES;
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            k[i] = from_k[i];
            q[i] = from_q[i];
        }
#pragma unroll
        for (int i = 0; i < VALUES; ++i) v[i] = from_v[i];
        beta = *token_of(p.beta, work, p.beta_row, p.beta_token, work.head);
        if (lane == work.stored) g = p.g[work.token_at(p.g_row, p.g_token) + work.head];
    }
    const int bytes = work.stored * VALUE_SIZE * 4;
    barrier_wait(&barriers.tokens_free[producer], (use & 1) ^ 1);
    if (lane == 0 && bytes)
        copy_bulk(tokens.written, ring.written + of_head * VALUE_SIZE, bytes, &barriers.tokens_ready[producer]);

    const RingDecay decay(g);
    if (lane < RING) tokens.decays[lane] = decay.of_token;
    if (lane == 0) tokens.state_decay = decay.of_state;
    if (work.has_token) {
        float products[3] = {};
        float dots[32];
        float token_k[KEYS], token_q[KEYS];
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            token_k[i] = to_float(k[i]);
            token_q[i] = to_float(q[i]);
            products[0] = fmaf(token_k[i], token_k[i], products[0]);
            products[1] = fmaf(token_q[i], token_q[i], products[1]);
            products[2] = fmaf(token_q[i], token_k[i], products[2]);
            tokens.k_q[lane * KEYS + i] = make_float2(token_k[i], token_q[i]);
        }
#pragma unroll
        for (int i = 0; i < VALUES; ++i) tokens.v[lane * VALUES + i] = to_float(v[i]);
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            float key[KEYS];
            dots[j] = dots[16 + j] = 0.0f;
            if (j >= RING) continue;
            stored[j].unpack(key);
#pragma unroll
            for (int i = 0; i < KEYS; ++i) {
                dots[j] = fmaf(token_k[i], key[i], dots[j]);
                dots[16 + j] = fmaf(token_q[i], key[i], dots[16 + j]);
            }
        }
        tokens.weights[lane] = sum_each<32>(dots) * __shfl_sync(~0u, decay.of_token, lane % 16);
#pragma unroll
        for (int i = 0; i < 3; ++i) products[i] = sum_of_lanes<32>(products[i]);
        if (lane == 0) {
            tokens.k_factor = NORMED ? rsqrtf(products[0] + NORM_EPSILON) : 1.0f;
            tokens.q_factor = NORMED ? p.scale * rsqrtf(products[1] + NORM_EPSILON) : p.scale;
            tokens.q_k = products[2];
            tokens.beta = to_float(beta);
        }
    }
    if (work.flushes()) {
#pragma unroll
        for (int j = 0; j < RING; ++j) {
#pragma unroll
            for (int i = 0; i < KEYS; ++i)
                if (j == work.stored) reinterpret_cast<DATA_T*>(&stored[j])[i] = k[i];
            stored[j].store(&tokens.keys[j][lane * KEYS]);
        }
    } else {
        if (first_of_key) {
#pragma unroll
            for (int i = 0; i < KEYS; ++i) ring_k[work.stored * KEY_SIZE + i] = k[i];
        }
        if (lane == work.stored) ring.decays[of_head + lane] = g;
    }
    if (lane == 0)
        barrier_arrive_expecting(&barriers.tokens_ready[producer], bytes);
    else
        barrier_arrive(&barriers.tokens_ready[producer]);
}

// Where a lane of a computing warp is in a chunk.
struct Place {
    int row_lane, column;

    __device__ __forceinline__ Place() {
        const int lane = threadIdx.x % 32;
        row_lane = lane / COLUMN_LANES;
        column = threadIdx.x / 32 * COLUMNS + lane % COLUMN_LANES * ACCESS;
    }
    __device__ __forceinline__ int row(int i) const { return i * ROW_LANES + row_lane; }
};

// Output of the token, and what it writes, of the warp's columns.
__device__ __forceinline__ void compute(Shared& shared, Tokens& tokens, ChunkPlace& place, const GatedDeltaRing& ring,
                                        const RingWork& work, const Place& at) {
    const GatedDeltaDecode& p = ring.decode;
    const int lane = threadIdx.x % 32;
    float sums[2 * ACCESS] = {};
    for (int c = 0; c < CHUNKS; ++c) {
        barrier_wait(&shared.barriers.chunk_ready[place.slot], place.parity);
        const float* chunk = reinterpret_cast<const float*>(shared.chunks[place.slot]);
#pragma unroll
        for (int i = 0; i < LANE_ROWS; ++i) {
            const float4 state = *reinterpret_cast<const float4*>(chunk + at.row(i) * VALUE_SIZE + at.column);
            const float2 k_q = tokens.k_q[c * CHUNK_ROWS + at.row(i)];
            const float values[ACCESS] = {state.x, state.y, state.z, state.w};
#pragma unroll
            for (int e = 0; e < ACCESS; ++e) {
                sums[e] = fmaf(k_q.x, values[e], sums[e]);
                sums[ACCESS + e] = fmaf(k_q.y, values[e], sums[ACCESS + e]);
            }
        }
        if (!work.flushes()) barrier_arrive(&shared.barriers.chunk_free[place.slot]);
        place.advance();
    }
    // Lanes 0 to 15 finish a column each; the others have its sum of q.
    const int column = at.column + lane / COLUMN_LANES % ACCESS;
    float sum = tokens.state_decay * sum_each<2 * ACCESS>(sums);
    for (int j = 0; j < work.stored; ++j)
        sum = fmaf(tokens.weights[lane / 16 * 16 + j], tokens.written[j][column], sum);
    const float q_state = __shfl_down_sync(~0u, sum, 16);
    if (lane < 16) {
        const float written = tokens.k_factor * tokens.beta * (tokens.v[column] - tokens.k_factor * sum);
        DATA_T* o = static_cast<DATA_T*>(p.o) + work.token_at(p.o_row, p.o_token) + work.head * p.o_head;
        o[column] = from_float<DATA_T>(tokens.q_factor * fmaf(tokens.q_k, written, q_state));
        if (work.flushes()) {
            tokens.written[RING - 1][column] = written;
        } else {
            const int64_t of_head = (int64_t(work.slot) * ring.value_heads + work.head) * RING;
            ring.written[(of_head + work.stored) * VALUE_SIZE + column] = written;
        }
    }
    __syncwarp();
}

// Writes the warp's columns of the state: decayed, and with the tokens.
__device__ __forceinline__ void flush(Shared& shared, const Tokens& tokens, ChunkPlace& place, float* state, int count,
                                      const Place& at) {
    for (int c = 0; c < CHUNKS; ++c) {
        barrier_wait(&shared.barriers.chunk_ready[place.slot], place.parity);
        const float* chunk = reinterpret_cast<const float*>(shared.chunks[place.slot]);
        float values[LANE_ROWS][ACCESS];
#pragma unroll
        for (int i = 0; i < LANE_ROWS; ++i) {
            const float4 before = *reinterpret_cast<const float4*>(chunk + at.row(i) * VALUE_SIZE + at.column);
            values[i][0] = tokens.state_decay * before.x;
            values[i][1] = tokens.state_decay * before.y;
            values[i][2] = tokens.state_decay * before.z;
            values[i][3] = tokens.state_decay * before.w;
        }
        for (int j = 0; j < count; ++j) {
            const float4 written = *reinterpret_cast<const float4*>(&tokens.written[j][at.column]);
            const float decay = tokens.decays[j];
#pragma unroll
            for (int i = 0; i < LANE_ROWS; ++i) {
                const float key = decay * to_float(tokens.keys[j][c * CHUNK_ROWS + at.row(i)]);
                values[i][0] = fmaf(key, written.x, values[i][0]);
                values[i][1] = fmaf(key, written.y, values[i][1]);
                values[i][2] = fmaf(key, written.z, values[i][2]);
                values[i][3] = fmaf(key, written.w, values[i][3]);
            }
        }
#pragma unroll
        for (int i = 0; i < LANE_ROWS; ++i) {
            const float4 after = make_float4(values[i][0], values[i][1], values[i][2], values[i][3]);
            __stcs(reinterpret_cast<float4*>(state + (c * CHUNK_ROWS + at.row(i)) * VALUE_SIZE + at.column), after);
        }
        barrier_arrive(&shared.barriers.chunk_free[place.slot]);
        place.advance();
    }
}

}  // namespace

#endif

extern "C" __global__ void __launch_bounds__(32 * (9 + PRODUCERS), 1)
gated_delta_rule_ring_stream(const __grid_constant__ GatedDeltaRing params) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    static_assert(sizeof(Shared) <= SHARED_BYTES, "as the launch has it");
    const GatedDeltaDecode& p = params.decode;
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) shared.barriers.init();
    __syncthreads();
    wait_for_earlier_kernels();
    let_later_kernels_start();
    if (warp == STATE_WARP) {
        stream_states(params, shared.barriers, shared.chunks);
    } else if (warp >= FIRST_PRODUCER) {
        const int producer = warp - FIRST_PRODUCER;
        fence_for_bulk_copies();
        visit_rings(
            params,
            [&](int n, const RingWork& work) {
                if (n % PRODUCERS == producer)
                    prepare(shared.tokens[producer], shared.barriers, producer, n / PRODUCERS, params, work);
            },
            [&](int row, int head) {
                if (producer > 0) return;
                DATA_T* o = static_cast<DATA_T*>(p.o) + row * p.o_row + head * p.o_head;
                for (int i = threadIdx.x % 32; i < VALUE_SIZE; i += 32) o[i] = from_float<DATA_T>(0.0f);
            });
    } else {
        const Place at;
        ChunkPlace place;
        visit_rings(
            params,
            [&](int n, const RingWork& work) {
                const int producer = n % PRODUCERS;
                Tokens& tokens = shared.tokens[producer];
                barrier_wait(&shared.barriers.tokens_ready[producer], n / PRODUCERS & 1);
                ChunkPlace first = place;
                if (work.has_token) compute(shared, tokens, place, params, work, at);
                if (work.flushes()) {
                    float* state = static_cast<float*>(p.state_out) + work.slot * p.state_out_slot +
                                   work.head * HEAD_SIZE;
                    flush(shared, tokens, first, state, work.count(), at);
                    place = first;
                }
                barrier_arrive(&shared.barriers.tokens_free[producer]);
            },
            [](int, int) {});
    }
#endif
}
