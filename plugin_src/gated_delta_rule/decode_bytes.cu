// One token per row and states of 8 bits: as decode_slices.cu, with one scale per column, from the new state.
//
// The new state is computed twice, for the largest magnitudes of its columns and to be rounded, as registers hold it
// only in its stored form. Macros: those of decode_token.cuh; AT_ONCE. Grid: as of decode_slices.cu.
#include "common/launch.cuh"
#include "gated_delta_rule/bytes_params.cuh"
#include "gated_delta_rule/decode_token.cuh"

namespace {

struct SharedScales {
    alignas(16) float largest[WARPS][SLICE];
    alignas(16) float factors[SLICE];  // of the new numbers before they are rounded
};

// Numbers of the columns of this thread from the same columns of a row of memory.
__device__ __forceinline__ void load_columns(float (&to)[ACCESS], const float* row) {
#pragma unroll
    for (int e = 0; e < ACCESS; e += 4)
        *reinterpret_cast<float4*>(to + e) = *reinterpret_cast<const float4*>(row + e);
}

// A slice of a state and the scales of this thread's columns.
struct ByteSlice {
    StateSlice numbers;
    float scales[ACCESS];

    __device__ __forceinline__ void add_products(float (&sums)[SUMS], const float (&k)[ROWS],
                                                 const float (&q)[ROWS]) const {
        numbers.add_products(sums, k, q);
#pragma unroll
        for (int e = 0; e < SUMS; ++e) sums[e] *= scales[e % ACCESS];
    }
    // Makes the compiler convert the numbers again from here on: as floats they would not fit in registers.
    __device__ __forceinline__ void drop_floats() {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) asm volatile("" : "+r"(numbers.rows[i].word.x), "+r"(numbers.rows[i].word.y));
    }
    // Row i of the new state, of which `written` is as in StateSlice::update.
    __device__ __forceinline__ void new_row(float (&to)[ACCESS], int i, const float (&decay)[Token::DECAYS],
                                            const float (&k)[ROWS], const float (&written)[ACCESS]) const {
        numbers.rows[i].unpack(to);
#pragma unroll
        for (int e = 0; e < ACCESS; ++e)
            to[e] = fmaf(k[i], written[e], decay[CHANNEL_DECAY ? i : 0] * scales[e] * to[e]);
    }
};

// The largest magnitudes of the new columns of each warp, in shared memory.
__device__ __forceinline__ void share_largest(SharedScales& shared, const ByteSlice& state,
                                              const float (&decay)[Token::DECAYS], const float (&k)[ROWS],
                                              const float (&written)[ACCESS], const Place& at) {
    float largest[ACCESS] = {};
    if (at.inside) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            float values[ACCESS];
            state.new_row(values, i, decay, k, written);
#pragma unroll
            for (int e = 0; e < ACCESS; ++e) largest[e] = larger_magnitude(largest[e], values[e]);
        }
    }
#pragma unroll
    for (int distance = 16; distance >= COLUMN_LANES; distance /= 2)
#pragma unroll
        for (int e = 0; e < ACCESS; ++e)
            largest[e] = larger_magnitude(largest[e], __shfl_xor_sync(0xffffffffu, largest[e], distance));
    if (threadIdx.x % 32 >= COLUMN_LANES) return;
    float* to = shared.largest[threadIdx.x / 32] + at.column_lane * ACCESS;
#pragma unroll
    for (int e = 0; e < ACCESS; e += 4)
        *reinterpret_cast<float4*>(to + e) = *reinterpret_cast<const float4*>(largest + e);
}

// The new scales of the columns that this thread finishes.
__device__ __forceinline__ void finish_scales(SharedScales& shared, float* scales) {
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) {
        if (!Place::finishes(i)) continue;
        const int c = threadIdx.x + i * THREADS;
        float largest = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) largest = larger_magnitude(largest, shared.largest[w][c]);
        const ByteScale<STATE_T> found(largest);
        shared.factors[c] = found.factor;
        scales[Place::finished_column(i)] = found.scale;
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE / THREADS)
gated_delta_rule_bytes(const __grid_constant__ GatedDeltaBytes bytes) {
    __shared__ BlockSums shared;
    __shared__ SharedScales shared_scales;
    const GatedDeltaDecode& params = bytes.decode;
    const int head = blockIdx.y * params.values_per_key + blockIdx.x / SLICES;
    wait_for_earlier_kernels();
    let_later_kernels_start();
    const RowView view = row_view(params.rows, blockIdx.z);
    if (view.slot < 0) return;

    const Place at;
    const int64_t head_state = int64_t(head) * KEY_SIZE * VALUE_SIZE;
    const int64_t head_scales = view.slot * bytes.scales_slot + int64_t(head) * VALUE_SIZE;
    STATE_T* state_out = static_cast<STATE_T*>(params.state_out) + view.slot * params.state_out_slot + head_state;
    ByteSlice state;
    state.numbers.load(static_cast<const STATE_T*>(params.state) + view.slot * params.state_slot + head_state, at);
#pragma unroll
    for (int e = 0; e < ACCESS; ++e) state.scales[e] = 0.0f;
    if (EXACT_COLUMNS || at.column < VALUE_SIZE)
        load_columns(state.scales, bytes.state_scales + head_scales + at.column);

    DATA_T* o = static_cast<DATA_T*>(params.o) + view.row * params.o_row + view.first_token * params.o_token +
                head * params.o_head;
    float* scales_out = bytes.state_scales_out + head_scales;
    if (view.length < 1) {
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i)
            if (view.written > 0 && Place::finishes(i)) o[Place::finished_column(i)] = from_float<DATA_T>(0.0f);
        state.numbers.store(state_out, at);
        if (at.inside && at.row == 0)
#pragma unroll
            for (int e = 0; e < ACCESS; ++e) scales_out[at.column + e] = state.scales[e];
        return;
    }

    Token token;
    token.load(params, view, 0, head, at);
    float decay[Token::DECAYS], k[ROWS], q[ROWS], sums[SUMS], written[ACCESS], factors[ACCESS];
#pragma unroll
    for (int i = 0; i < Token::DECAYS; ++i) decay[i] = expf(token.g[i]);
    token.k.unpack(k);
    token.q.unpack(q);
    add_sums(shared, state, k, q, decay, at, sums);
    const int first = threadIdx.x % 32 / COLUMN_LANES * SUMS_KEPT;
#pragma unroll
    for (int i = 0; i < SUMS_KEPT; ++i)
        shared.columns[threadIdx.x / 32][(first + i) / ACCESS][at.column_lane * ACCESS + (first + i) % ACCESS] =
            sums[i];
    __syncthreads();
    finish_columns(shared, token, params.scale, CHANNEL_DECAY ? 1.0f : decay[0], o);
    __syncthreads();
    load_columns(written, shared.written + at.column_lane * ACCESS);
    state.drop_floats();
    share_largest(shared_scales, state, decay, k, written, at);
    __syncthreads();
    finish_scales(shared_scales, scales_out);
    __syncthreads();
    state.drop_floats();
    load_columns(factors, shared_scales.factors + at.column_lane * ACCESS);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        float values[ACCESS];
        state.new_row(values, i, decay, k, written);
#pragma unroll
        for (int e = 0; e < ACCESS; ++e) values[e] *= factors[e];
        state.numbers.rows[i].pack(values);
    }
    state.numbers.store(state_out, at);
}
