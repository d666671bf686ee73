// The experts of each token: the top_k largest logits, the lower expert first where two are equal, and their weights.
//
// Macros: ITEMS (experts of a lane); THREADS.
// Grid: a warp a token, whose logits stay in its registers.
#include "common/launch.cuh"
#include "routed_experts/params.cuh"
#include "routed_experts/warp_sum.cuh"

namespace {

struct Choice {
    float logit;
    int expert;  // -1: none

    __device__ __forceinline__ void better(float other_logit, int other) {
        const bool ahead = other_logit > logit || (other_logit == logit && other < expert);
        if (other >= 0 && (expert < 0 || ahead)) {
            logit = other_logit;
            expert = other;
        }
    }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) top_k_softmax(const __grid_constant__ TopKSoftmax params) {
    const int lane = threadIdx.x % 32, token = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    let_later_kernels_start();
    if (token >= params.tokens) return;
    wait_for_earlier_kernels();

    float logits[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const int expert = 32 * i + lane;
        logits[i] = 0.0f;
        if (expert < params.experts) logits[i] = params.logits[static_cast<int64_t>(token) * params.experts + expert];
    }
    unsigned taken = 0;
    float largest = 0.0f, mine = 0.0f, sum = 0.0f;
    int chosen = 0;
    for (int k = 0; k < params.top_k; k++) {
        Choice best = {0.0f, -1};
#pragma unroll
        for (int i = 0; i < ITEMS; i++)
            if (32 * i + lane < params.experts && !(taken >> i & 1)) best.better(logits[i], 32 * i + lane);
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
            best.better(__shfl_xor_sync(0xffffffffu, best.logit, distance),
                        __shfl_xor_sync(0xffffffffu, best.expert, distance));
        if (best.expert % 32 == lane) taken |= 1u << (best.expert / 32);
        if (k == 0) largest = best.logit;
        const float weight = expf(best.logit - largest);
        sum += weight;
        if (lane == k) {
            chosen = best.expert;
            mine = weight;
        }
    }
    if (!params.normalized) {
        sum = 0.0f;
#pragma unroll
        for (int i = 0; i < ITEMS; i++)
            if (32 * i + lane < params.experts) sum += expf(logits[i] - largest);
        sum = warp_sum(sum);
    }
    if (lane < params.top_k) {
        params.ids[token * params.top_k + lane] = chosen;
        params.weights[token * params.top_k + lane] = mine / sum;
    }
}
