// The scalars of one head at one token. Loading and computing are apart, so that all loads of a thread come first.
#pragma once

#include "common/element.cuh"
#include "common/launch.cuh"
#include "common/math.cuh"
#include "update_ssm_state/decode_params.cuh"

struct HeadStep {
    float decay;  // exp(A * dt)
    float dt;     // after bias, softplus and clamp
    float skip;   // D
};

// T: type of dt, U of D, V of dt_bias.
template <typename T, typename U, typename V>
struct HeadScalars {
    T dt;
    U D;
    V dt_bias;
    float A;

    // By one thread, of a row whose length is not known yet.
    __device__ static __forceinline__ void prefetch(const SsmDecode& params, int64_t row, int head) {
        prefetch_to_l2(static_cast<const V*>(params.dt_bias) + head);
        prefetch_to_l2(params.A + head);
        prefetch_to_l2(static_cast<const U*>(params.D) + head);
        if (params.rows.query_start_loc) return;
        prefetch_to_l2(static_cast<const T*>(params.dt) + row * params.dt_row + head);
        if (params.rows.context_lengths) prefetch_to_l2(params.rows.context_lengths + row);
    }

    __device__ __forceinline__ void load(const SsmDecode& params, const RowView& view, int head) {
        dt = static_cast<const T*>(params.dt)[view.row * params.dt_row + view.first_token * params.dt_token + head];
        dt_bias = static_cast<const V*>(params.dt_bias)[head];
        A = params.A[head];
        D = static_cast<const U*>(params.D)[head];
    }

    template <bool WITH_SOFTPLUS>
    __device__ __forceinline__ HeadStep step(const SsmDecode& params) const {
        float value = to_float(dt) + to_float(dt_bias);
        if (WITH_SOFTPLUS) value = softplus(value);
        value = fminf(fmaxf(value, params.dt_min), params.dt_max);
        return {expf(A * value), value, to_float(D)};
    }
};
