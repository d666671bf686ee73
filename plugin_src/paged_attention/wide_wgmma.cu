// Latents of multi-head latent attention on Hopper's warpgroup products; the calls and the results of wide_heads.cu.
//
// A block takes QUERIES queries of a KV head. One warpgroup gathers keys from their pages, one computes weights, and
// two add up the weighted values, which are the same shared memory as the keys. Positions are the rows of both products
// and queries their columns (of the second one, channels are the rows), so that few queries leave no part of the
// products empty.
//   scores[key][query] = K Q^T;  y[channel][query] += V^T weights[query][key]^T
// Positions may be split between blocks, whose results wide_merge.cu joins.
//
// Macros: DATA_T (16 bits); HEAD_DIM (a multiple of 64); QUERIES (32); KEYS (64); SOFTCAP. Grid: x covers the tiles of
// queries of each KV head, y the splits, z the rows or the tokens.
#include "common/launch.cuh"
#include "paged_attention/wide_wgmma_weights.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Weighted values of channels 64 * FIRST to 64 * (FIRST + NUMBER) - 1 of all queries.
template <int FIRST, int NUMBER>
__device__ __forceinline__ void add_values(Shared& shared, const WideAttention& wide, const Work& work) {
    const PagedAttention& p = wide.call;
    const int warp = threadIdx.x % 128 / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float y[NUMBER][QUERIES / 2] = {};
    RingPlace<SLOTS> at_keys;
    RingPlace<WEIGHTS> at_weights;
#pragma unroll 1
    for (int key = work.begin; key < work.end; key += KEYS) {
        barrier_wait(&shared.weights_full[at_weights.slot], at_weights.parity);
        wait_for_keys(shared, at_keys);
        if (shared.corrected[at_weights.slot]) {
#pragma unroll
            for (int i = 0; i < QUERIES / 4; ++i) {
                const float correction = shared.corrections[at_weights.slot][8 * (i / 2) + 2 * t + i % 2];
#pragma unroll
                for (int panel = 0; panel < NUMBER; ++panel)
#pragma unroll
                    for (int h = 0; h < 2; ++h) y[panel][i / 2 * 4 + 2 * h + i % 2] *= correction;
            }
        }
        const unsigned long long values = operand(shared.keys[at_keys.slot]) + FIRST * (KEY_PANEL >> 4);
        const unsigned long long weights = operand(shared.weights[at_weights.slot]);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k) {
#pragma unroll
            for (int panel = 0; panel < NUMBER; ++panel)
                multiply_transposed<DATA_T>(y[panel], values + panel * (KEY_PANEL >> 4) + k * NEXT_16_ROWS,
                                            weights + k * NEXT_16_COLUMNS);
            if (k == HALF / 16 - 1) wgmma_commit();
        }
        wgmma_commit();
        wgmma_wait<1>();
        barrier_arrive_of_warp(&shared.keys_empty[2 * at_keys.slot]);
        wgmma_wait<0>();
#pragma unroll
        for (int panel = 0; panel < NUMBER; ++panel) in_flight(y[panel]);
        barrier_arrive_of_warp(&shared.keys_empty[2 * at_keys.slot + 1]);
        barrier_arrive_of_warp_after_loads(&shared.weights_empty[at_weights.slot]);  // its lanes loaded corrections
        at_keys.advance();
        at_weights.advance();
    }
    asm volatile("barrier.cta.sync 2, 384;" ::: "memory");  // the normalizers are there
    const bool odd = g % 2;
#pragma unroll
    for (int n = 0; n < QUERIES / 8; ++n) {
        const int query = 8 * n + 2 * t;
        if (wide.outputs) {
            float* to = wide.outputs + (work.part(wide) * QUERIES + query) * HEAD_DIM + FIRST * PANEL + warp * 16 + g;
#pragma unroll
            for (int panel = 0; panel < NUMBER; ++panel)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (work.has(p, query + i % 2))
                        to[i % 2 * HEAD_DIM + panel * PANEL + i / 2 * 8] = y[panel][4 * n + i];
            continue;
        }
        // Lanes of neighbouring channels exchange what they have, so that each has two channels of one query.
        const float normalizer[2] = {shared.normalizers[query], shared.normalizers[query + 1]};
        const bool valid = work.has(p, query + odd);
        DATA_T* to = static_cast<DATA_T*>(p.y) + (valid ? work.offset(p, query + odd, p.y_token, p.y_head) : 0) +
                     FIRST * PANEL + warp * 16 + g - odd;
#pragma unroll
        for (int panel = 0; panel < NUMBER; ++panel)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float first = y[panel][4 * n + 2 * h] * normalizer[0];
                const float second = y[panel][4 * n + 2 * h + 1] * normalizer[1];
                const float other = __shfl_xor_sync(~0u, odd ? first : second, 4);
                if (valid)
                    *reinterpret_cast<unsigned*>(to + panel * PANEL + h * 8) =
                        odd ? Mma<DATA_T>::pack(other, second) : Mma<DATA_T>::pack(first, other);
            }
    }
}

#endif

extern "C" __global__ void __launch_bounds__(512, 1)
    paged_attention_wide_wgmma(const __grid_constant__ WideAttention wide) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    if (threadIdx.x == 0) shared.init_barriers();
    __syncthreads();
    wait_for_earlier_kernels();
    let_later_kernels_start();
    const Work work(wide);
    if (!work.has_queries(wide.call)) return;
    const int group = threadIdx.x / 128;
    if (group == 0) {
        produce(shared, wide.call, work);
    } else if (group == 1) {
        weigh_keys(shared, wide, work);
        asm volatile("barrier.cta.sync 2, 384;" ::: "memory");
    } else if (group == 2) {
        add_values<0, (PANELS + 1) / 2>(shared, wide, work);
    } else {
        add_values<(PANELS + 1) / 2, PANELS / 2>(shared, wide, work);
    }
#endif
}
