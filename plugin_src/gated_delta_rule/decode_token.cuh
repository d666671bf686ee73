// What a block computes for one token of a head: sums over the rows of the state, then output and written difference.
//
// Macros: those of decode_slice.cuh; CHANNEL_DECAY (one decay a row of the state, else one a head); NORMED (k and q are
// divided by their norm); KEY_ACCESS (elements of one access to q and k, a divisor of ROWS).
#pragma once

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
            q.load(static_cast<const DATA_T*>(p.q) + view.row * p.q_row + token * p.q_token +
                   blockIdx.y * p.q_head + at.row);
            k.load(static_cast<const DATA_T*>(p.k) + view.row * p.k_row + token * p.k_token +
                   blockIdx.y * p.k_head + at.row);
        }
#pragma unroll
        for (int i = 0; i < DECAYS; ++i)
            if (!CHANNEL_DECAY || EXACT_ROWS || at.row < KEY_SIZE) g[i] = decay[CHANNEL_DECAY ? at.row + i : 0];
        const DATA_T* value = static_cast<const DATA_T*>(p.v) + view.row * p.v_row + token * p.v_token +
                              head * p.v_head;
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i)
            if (Place::finishes(i)) v[i] = value[Place::finished_column(i)];
        beta = static_cast<const DATA_T*>(p.beta)[view.row * p.beta_row + token * p.beta_token + head];
    }
};

// The products of k and q with the rows of each thread, added up over its warp: the lane keeps SUMS_KEPT of the sums.
// The warp's part of |k|^2, |q|^2 and q @ k goes to shared memory.
template <typename Slice>
__device__ __forceinline__ void add_sums(BlockSums& shared, const Slice& state, const float (&k)[ROWS],
                                         const float (&q)[ROWS], const float (&decay)[Token::DECAYS], const Place& at,
                                         float (&sums)[SUMS]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float products[3] = {};
    float read_k[ROWS], read_q[ROWS];
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sums[i] = 0.0f;
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
    if (lane == 0)
        *reinterpret_cast<float4*>(shared.products[warp]) = make_float4(products[0], products[1], products[2], 0.0f);
    state.add_products(sums, read_k, read_q);
    reduce_over_rows(sums, lane);
}

// The factors of q and k, and q @ k without them.
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
__device__ __forceinline__ void finish_columns(BlockSums& shared, const Token& token, float scale, float decay,
                                               DATA_T* o) {
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

}  // namespace
