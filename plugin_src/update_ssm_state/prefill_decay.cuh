// Time steps and decays of one chunk of one head.
#pragma once

#include "common/element.cuh"
#include "common/math.cuh"
#include "update_ssm_state/prefill_params.cuh"

// Token j of the chunk: log_decay[j] is the base-2 logarithm of the decay over tokens 0..j, with the bits that a float
// cannot hold in log_decay_rest; step[j] is the time step (0 at padding); write[j] = step[j] * decay over the tokens
// behind j.
struct ChunkDecay {
    float log_decay[CHUNK];
    float log_decay_rest[CHUNK];
    float step[CHUNK];
    float write[CHUNK];
    float total;  // decay over the whole chunk
    float unused[3];
};

// The time steps of a chunk before the bias, two tokens per lane; past the chunk's end nothing is valid.
template <typename T>
struct RawSteps {
    T value[2];

    __device__ __forceinline__ void load(const T* dt, int64_t token_stride, int valid, int lane) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            value[i] = 2 * lane + i < valid ? dt[(2 * lane + i) * token_stride] : from_float<T>(0.0f);
        }
    }
};

struct HeadScalars {
    float log2_decay;  // A * log2(e)
    float bias;
};

// Called by a whole warp. SUM is the type that logarithms are added in.
template <typename SUM, typename T>
__device__ __forceinline__ void store_decay(ChunkDecay& chunk, const RawSteps<T>& raw, const HeadScalars& head,
                                            const PrefillParams& p, int valid, int lane) {
    float step[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float biased = to_float(raw.value[i]) + head.bias;
        const float positive = p.dt_softplus ? softplus(biased) : biased;
        step[i] = 2 * lane + i < valid ? fminf(fmaxf(positive, p.dt_min), p.dt_max) : 0.0f;
    }
    const SUM first = static_cast<SUM>(step[0]) * head.log2_decay;
    const SUM second = static_cast<SUM>(step[1]) * head.log2_decay;
    SUM sum = first + second;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const SUM before = __shfl_up_sync(~0u, sum, distance);
        sum += lane >= distance ? before : SUM(0);
    }
    const SUM total = __shfl_sync(~0u, sum, 31);
    const SUM log_decay[2] = {sum - second, sum};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int j = 2 * lane + i;
        if (j >= CHUNK) break;
        const float rounded = static_cast<float>(log_decay[i]);
        chunk.log_decay[j] = rounded;
        chunk.log_decay_rest[j] = static_cast<float>(log_decay[i] - rounded);
        chunk.step[j] = step[i];
        chunk.write[j] = step[i] * exp2_approx(static_cast<float>(total - log_decay[i]));
    }
    if (lane == 0) chunk.total = exp2_approx(static_cast<float>(total));
}

// Decays between blocks of 16 tokens of a chunk as products of two factors, none above 1, which saves an exponential
// for each pair of tokens. Token i of block b, token j of an earlier block: the decay from j to i is since_block[i]
// times the decay from j to the last token before block b; until_block[b - 1][j] is the latter times the time step of
// j.
constexpr int BLOCK = 16;
struct BlockDecay {
    float since_block[CHUNK];
    float until_block[CHUNK / BLOCK - 1][CHUNK];
};

// Called by a whole warp after store_decay().
__device__ __forceinline__ void store_block_decay(BlockDecay& blocks, const ChunkDecay& chunk, int lane) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int j = lane + 32 * i;
        const float log_decay = chunk.log_decay[j], step = chunk.step[j];
        const int block = j / BLOCK;
        blocks.since_block[j] = exp2_approx(block == 0 ? log_decay : log_decay - chunk.log_decay[block * BLOCK - 1]);
#pragma unroll
        for (int b = 1; b < CHUNK / BLOCK; ++b) {
            if (block < b)
                blocks.until_block[b - 1][j] = exp2_approx(chunk.log_decay[b * BLOCK - 1] - log_decay) * step;
        }
    }
}
