// The state of one channel, spread over LANES neighbouring threads.
//
// Macros: DATA_T, STATE_T, D_T, BIAS_T; STATE_SIZE; LANES (a power of two, at most 32, a divisor of
// STATE_SIZE / STATE_ACCESS); STATE_ACCESS (elements of one access to the state and to A); GROUP_ACCESS (of one to B
// and C, a divisor); SOFTPLUS. Lane l has the units l, l + LANES, ... of STATE_ACCESS elements.
#pragma once

#include "common/access.cuh"
#include "common/launch.cuh"
#include "common/math.cuh"
#include "selective_scan/params.cuh"

namespace {

constexpr int ELEMENTS = STATE_SIZE / LANES;
constexpr int RATE_ACCESS = STATE_ACCESS > 4 ? 4 : STATE_ACCESS;  // elements of one access to A
constexpr float LOG2_E = 1.44269504f;
constexpr float LARGEST = 3.4e38f;  // lower limit of a rate: -inf times a time step of 0 is NaN

// Index in a run of STATE_SIZE of element e of a lane.
__device__ __forceinline__ int element(int lane, int e) {
    return (e / STATE_ACCESS * LANES + lane) * STATE_ACCESS + e % STATE_ACCESS;
}

__device__ __forceinline__ float time_step(const SelectiveScan& params, DATA_T dt, BIAS_T bias) {
    float value = to_float(dt) + to_float(bias);
    if (SOFTPLUS) value = softplus_polynomial(value);
    return fminf(fmaxf(value, params.dt_min), params.dt_max);
}

// A lane's part of a channel's state as it is in memory; `slot` is the state of its slot.
struct StoredState {
    Access<STATE_T, STATE_ACCESS> parts[ELEMENTS / STATE_ACCESS];

    __device__ __forceinline__ void load(const STATE_T* slot, int64_t channel, int lane) {
#pragma unroll
        for (int e = 0; e < ELEMENTS; e += STATE_ACCESS)
            parts[e / STATE_ACCESS].load(slot + channel * STATE_SIZE + element(lane, e));
    }
    __device__ __forceinline__ void store(STATE_T* slot, int64_t channel, int lane) const {
#pragma unroll
        for (int e = 0; e < ELEMENTS; e += STATE_ACCESS)
            parts[e / STATE_ACCESS].store(slot + channel * STATE_SIZE + element(lane, e));
    }
};

struct ChannelState {
    float h[ELEMENTS];
    float rate[ELEMENTS];  // A in units of log 2

    __device__ __forceinline__ void unpack(const StoredState& stored) {
#pragma unroll
        for (int e = 0; e < ELEMENTS; e += STATE_ACCESS) stored.parts[e / STATE_ACCESS].unpack(h + e);
    }
    __device__ __forceinline__ StoredState packed() const {
        StoredState stored;
#pragma unroll
        for (int e = 0; e < ELEMENTS; e += STATE_ACCESS) stored.parts[e / STATE_ACCESS].pack(h + e);
        return stored;
    }
    __device__ __forceinline__ void load_rates(const SelectiveScan& params, int64_t channel, int lane) {
#pragma unroll
        for (int e = 0; e < ELEMENTS; e += RATE_ACCESS) {
            Access<float, RATE_ACCESS> part;
            part.load(params.A + channel * STATE_SIZE + element(lane, e));
            part.unpack(rate + e);
        }
#pragma unroll
        for (int e = 0; e < ELEMENTS; ++e) rate[e] = fmaxf(rate[e] * LOG2_E, -LARGEST);
    }
    // One token; returns this lane's part of C times the new state. scaled: the time step times x.
    __device__ __forceinline__ float update(float step, float scaled, const float (&B)[ELEMENTS],
                                            const float (&C)[ELEMENTS]) {
        float sum = 0.0f;
#pragma unroll
        for (int e = 0; e < ELEMENTS; ++e) {
            h[e] = fmaf(exp2_approx(rate[e] * step), h[e], scaled * B[e]);
            sum = fmaf(h[e], C[e], sum);
        }
        return sum;
    }
};

}  // namespace
