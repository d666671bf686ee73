// Tokens that have not been written into a recurrent state yet, at most 16: lane j of a warp holds token j.
#pragma once

static_assert(RING >= 2 && RING <= 16, "lane j + 8 of a warp exists for every token j");

// The tokens in the ring of a slot, whatever the memory says: less than `ring`.
__device__ __forceinline__ int stored_tokens(const int* lengths, long long slot, int ring) {
    const int stored = lengths[slot];
    return stored < 0 ? 0 : (stored < ring ? stored : ring - 1);
}

// Decays up to the last token: of what the state had before the first one, and of what each token has written. The
// exponents are sums from the token itself on, never differences of longer sums.
struct RingDecay {
    float of_state;
    float of_token;

    // log_decay: of token `lane`, 0 where there is none. Every lane of the warp takes part.
    __device__ __forceinline__ explicit RingDecay(float log_decay) {
        float later = __shfl_down_sync(0xffffffffu, log_decay, 1);
        if (threadIdx.x % 32 >= 16) later = 0.0f;
#pragma unroll
        for (int distance = 1; distance < 16; distance *= 2) later += __shfl_down_sync(0xffffffffu, later, distance);
        of_token = expf(later);
        of_state = __shfl_sync(0xffffffffu, expf(later + log_decay), 0);
    }
};
