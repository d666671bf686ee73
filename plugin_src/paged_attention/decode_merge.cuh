// From the running softmaxes of warps to y: the warps of a block, then, where blocks share a unit, their parts.
#pragma once

#include "common/access.cuh"
#include "common/cluster.cuh"
#include "paged_attention/decode_step.cuh"

constexpr int MERGE_PITCH = COLUMNS + 4;  // accumulators of a warp then lie in different banks
constexpr int PART = QUERIES * (HEAD_DIM + 2);  // floats: output [QUERIES][HEAD_DIM], then largest and sum [QUERIES]
constexpr int RUN = 4;  // dims of a thread
constexpr int RUNS = HEAD_DIM / RUN;
constexpr int PARTS_AT_ONCE = 16;

// States in shared memory: output [WARPS][heads][MERGE_PITCH] and (largest, sum) [WARPS][heads]; with clusters also
// what the blocks of the cluster send for this block's share of runs: output and (largest, sum) [CLUSTER][share].
struct MergeBuffer {
    float* output;
    float4* received;
    float2* received_range;
    float2* range;
    int heads;
    int share;

    __device__ __forceinline__ MergeBuffer(float* memory, int heads)
        : output(memory), heads(heads), share(CLUSTER > 1 ? (heads * RUNS + CLUSTER - 1) / max(CLUSTER, 1) : 0) {
        received = reinterpret_cast<float4*>(memory + WARPS * heads * MERGE_PITCH);
        received_range = reinterpret_cast<float2*>(received + CLUSTER * share);
        range = received_range + CLUSTER * share;
    }

    __device__ __forceinline__ void* end() const { return range + WARPS * heads; }
    __device__ __forceinline__ float4* run(int place, int dim) const {
        return reinterpret_cast<float4*>(output + place * MERGE_PITCH + dim);
    }
    // Hands run `index` of this block's state to the block that merges it.
    __device__ __forceinline__ void send(int index, float2 own_range, float4 run) const {
        const int rank = index / share, place = blockIdx.x * share + index - rank * share;
        store_cluster(cluster_address(received + place, rank), run);
        store_cluster(cluster_address(received_range + place, rank), own_range);
    }
    __device__ __forceinline__ void store(const WarpState& state, int warp) {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int tile = 0; tile < QUERY_TILES; ++tile) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int head = 8 * tile + 2 * t + i, place = warp * heads + head;
                const float whole = sum_of_positions(state.sum[tile][i]);
                if (head >= heads) continue;
                if (g == 0) range[place] = make_float2(state.largest[tile][i], whole);
#pragma unroll
                for (int j = 0; j < DIM_TILES; ++j) {
                    output[place * MERGE_PITCH + dim_of_row(j, g, 0)] = state.output[tile][j][i] * Units::OUTPUT;
                    output[place * MERGE_PITCH + dim_of_row(j, g, 1)] = state.output[tile][j][i + 2] * Units::OUTPUT;
                }
            }
        }
    }
};

// A run of dims of one head, unnormalised.
struct Partial {
    float largest, sum, output[RUN];

    __device__ __forceinline__ Partial() : largest(minus_infinity()), sum(0.0f), output{} {}

    // Adds another one: (largest, sum) and a run of outputs; nothing where it has seen no position.
    __device__ __forceinline__ void take(float2 other, float4 run) {
        const float now = fmaxf(largest, other.x), values[RUN] = {run.x, run.y, run.z, run.w};
        if (other.x == minus_infinity()) return;
        const float mine = exp2_approx(largest - now), theirs = exp2_approx(other.x - now);
        sum = sum * mine + other.y * theirs;
#pragma unroll
        for (int i = 0; i < RUN; ++i) output[i] = output[i] * mine + values[i] * theirs;
        largest = now;
    }
    __device__ __forceinline__ float4 run() const { return make_float4(output[0], output[1], output[2], output[3]); }
};

// Head `head` of the unit and its dims from `dim` on, over the first `states` states of the buffer.
__device__ __forceinline__ Partial merged_states(const MergeBuffer& buffer, int states, int head, int dim) {
    Partial whole;
#pragma unroll 4
    for (int state = 0; state < states; ++state) {
        const int place = state * buffer.heads + head;
        whole.take(buffer.range[place], *buffer.run(place, dim));
    }
    return whole;
}

__device__ __forceinline__ void store_part(float* part, const Partial& partial, int head, int dim) {
    *reinterpret_cast<float4*>(part + head * HEAD_DIM + dim) = partial.run();
    if (dim == 0)
        reinterpret_cast<float2*>(part + QUERIES * HEAD_DIM)[head] = make_float2(partial.largest, partial.sum);
}

// The parts of blocks `begin`, begin + step and so on up to `last`. A unit's first block `first` has it in its second
// half, the others in their first.
__device__ __forceinline__ Partial merged_parts(const float* partials, int first, int begin, int last, int step,
                                                int head, int dim) {
    Partial whole;
    for (int base = begin; base <= last; base += PARTS_AT_ONCE * step) {
        float4 runs[PARTS_AT_ONCE];
        float2 ranges[PARTS_AT_ONCE];
#pragma unroll
        for (int i = 0; i < PARTS_AT_ONCE; ++i) {
            const int block = base + i * step;
            const float* part = partials + (2ll * block + (block == first)) * PART;
            ranges[i] = make_float2(minus_infinity(), 0.0f);
            runs[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (block <= last) {
                runs[i] = __ldcg(reinterpret_cast<const float4*>(part + head * HEAD_DIM + dim));
                ranges[i] = __ldcg(reinterpret_cast<const float2*>(part + QUERIES * HEAD_DIM) + head);
            }
        }
#pragma unroll
        for (int i = 0; i < PARTS_AT_ONCE; ++i) whole.take(ranges[i], runs[i]);
    }
    return whole;
}

// Run `index` of this block's share over all blocks of the cluster.
__device__ __forceinline__ Partial merged_cluster(const MergeBuffer& buffer, int index) {
    Partial whole;
#pragma unroll
    for (int rank = 0; rank < CLUSTER; ++rank) {
        const int place = rank * buffer.share + index;
        whole.take(buffer.received_range[place], buffer.received[place]);
    }
    return whole;
}

// Divides and writes y of query head `head` of the call.
__device__ __forceinline__ void store_output(const PagedAttention& call, Partial partial, int token,
                                             int head, int dim) {
    if (call.sinks != nullptr) {
        partial.take(make_float2(call.sinks[head] * LOG2_E, 1.0f), make_float4(0.0f, 0.0f, 0.0f, 0.0f));
    }
    float values[RUN];
#pragma unroll
    for (int i = 0; i < RUN; ++i) values[i] = partial.output[i] / partial.sum;
    Access<DATA_T, RUN> packed;
    packed.pack(values);
    packed.store(static_cast<DATA_T*>(call.y) + token * call.y_token + head * call.y_head + dim);
}

// Counts a block that has written its part; true in every thread of the last one of `parts`, which sees all parts.
__device__ __forceinline__ bool is_last_block(int* counter, int parts) {
    __shared__ int arrived;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        arrived = atomicAdd(counter, 1) + 1;
        if (arrived == parts) *counter = 0;
        __threadfence();
    }
    __syncthreads();
    return arrived == parts;
}
