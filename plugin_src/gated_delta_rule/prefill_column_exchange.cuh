// What the warps of prefill_column_pairs.cu leave for each other in shared memory, and how they wait for it.
//
// Macros: those of prefill_state.cuh, for 16 bits; WARPS.
#pragma once

#include "gated_delta_rule/prefill_column_stages.cuh"

namespace {

constexpr bool SIZED = CHANNEL_DECAY;

// Of a warp's columns, a unit a lane, which each lane takes from the same lane.
struct Exchange {
    alignas(16) uint4 state[KEY_SIZE / Product::K][32];  // left operands
    uint4 tokens[CHUNK / BLOCK][32];  // v of a chunk, as pairs of tokens; then its differences, as left operands
    float2 sizes[SIZED ? 32 : 1];     // ColumnSizes::back

    template <typename A>
    __device__ static __forceinline__ void put(uint4& to, const A& operand) {
        to = make_uint4(operand.r[0], operand.r[1], operand.r[2], operand.r[3]);
    }
    template <typename A>
    __device__ static __forceinline__ A taken(const uint4& from) {
        const uint4 words = from;
        return {{words.x, words.y, words.z, words.w}};
    }
    __device__ __forceinline__ void put_state(const StateColumns& columns) {
        const int lane = threadIdx.x % 32;
        const ColumnSizes sized(SIZED ? columns.largest(0) : 0.0f, SIZED ? columns.largest(2) : 0.0f);
        if (SIZED) sizes[lane] = make_float2(sized.back[0], sized.back[1]);
#pragma unroll
        for (int j = 0; j < KEY_TILES; j += 2) {
            const float(*tiles)[4] = columns.value + j;
            put(state[j / 2][lane], SIZED ? fitted(sized, tiles) : Product::a_from_accumulators(tiles));
        }
    }
    __device__ __forceinline__ void put_differences(const TokenSums& u) {
#pragma unroll
        for (int n = 0; n < TOKEN_TILES; n += 2)
            put(tokens[n / 2][threadIdx.x % 32], InnerProduct::a_from_accumulators(u + n));
    }
    __device__ __forceinline__ void put_values(const ChunkValues& v) {
#pragma unroll
        for (int n = 0; n < TOKEN_TILES; n += 2) {
            const uint2 first = v.pairs(n), second = v.pairs(n + 1);
            tokens[n / 2][threadIdx.x % 32] = make_uint4(first.x, first.y, second.x, second.y);
        }
    }
    __device__ __forceinline__ void take_values(int n, float (&values)[4]) const {
        const uint4 pairs = tokens[n / 2][threadIdx.x % 32];
        ChunkValues::unpack_pairs(n % 2 ? make_uint2(pairs.z, pairs.w) : make_uint2(pairs.x, pairs.y), values);
    }
};

// sums = rows @ state, of every token.
__device__ __forceinline__ void read_state(TokenSums& sums, const Exchange& from, const Key* rows) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < TOKEN_TILES * 4; ++i) sums[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int j = 0; j < KEY_SIZE; j += Product::K) {
        const Product::A before = Exchange::taken<Product::A>(from.state[j / Product::K][lane]);
#pragma unroll
        for (int n = 0; n < TOKEN_TILES; n += 2) {
            Product::B tokens[2];
            Product::load_b<Tile>(tokens, rows, n * 8, j, lane);
            Product::multiply(sums[n], before, tokens[0]);
            Product::multiply(sums[n + 1], before, tokens[1]);
        }
    }
    if (SIZED) {
        const float2 sizes = from.sizes[SIZED ? lane : 0];
        const float back[2] = {sizes.x, sizes.y};
        restore(back, sums);
    }
}

// What the two warps of the same columns wait for: differences, and that the state before a chunk is read.
struct Team {
    const int differences, readers;  // barriers

    __device__ __forceinline__ explicit Team(int index) : differences(1 + 2 * index), readers(2 + 2 * index) {}
    // By the warp of the state, and then by that of the outputs.
    __device__ __forceinline__ void put_differences() const { arrive(differences); }
    __device__ __forceinline__ void wait_for_differences() const { wait(differences); }
    // The other way round.
    __device__ __forceinline__ void leave_state() const { arrive(readers); }
    __device__ __forceinline__ void wait_for_readers() const { wait(readers); }

private:
    __device__ static __forceinline__ void arrive(int barrier) {
        asm volatile("bar.arrive %0, 64;" ::"r"(barrier) : "memory");
    }
    __device__ static __forceinline__ void wait(int barrier) {
        asm volatile("bar.sync %0, 64;" ::"r"(barrier) : "memory");
    }
};

}  // namespace
