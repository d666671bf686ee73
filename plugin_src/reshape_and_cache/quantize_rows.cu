// Rounds the keys and values of new tokens to e4m3 and writes them, with a scale for every head, to their slots of a
// paged pool. A warp has one head of one token: its numbers wait in registers for the largest of them.
//   scale = least power of two that the largest magnitude is at most 448 times of;  number = round(x / scale)
//
// Macros: DATA_T, HEAD_DIM (a multiple of 4), WARPS. Heads of keys and values start at multiples of 4 elements, those
// of the pool at multiples of 4 bytes.
#include "common/access.cuh"
#include "common/launch.cuh"
#include "reshape_and_cache/params.cuh"

constexpr int RUN = 4, RUNS = HEAD_DIM / RUN, PASSES = (RUNS + 31) / 32;

// What is not a number stays so, unlike in fmaxf.
__device__ __forceinline__ float larger(float a, float b) {
    float found;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

// The bits of a float that is 2^(exponent - 127): 448 is 1.75 * 2^8, so that mantissas up to 1.75 have it 8 lower,
// others 7. What is not finite becomes no number.
__device__ __forceinline__ float scale_of(float largest) {
    const unsigned bits = __float_as_uint(largest);
    const int exponent = max(1, static_cast<int>((bits + 0x1fffffu) >> 23) - 8);
    return __uint_as_float(bits < 0x7f800000u ? static_cast<unsigned>(exponent) << 23 : 0x7fffffffu);
}

// Grid: (heads of keys, then of values, over WARPS, tokens).
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    reshape_and_cache_fp8(const __grid_constant__ ReshapeAndCache p) {
    const int item = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool values = item >= p.heads;
    const int head = item - values * p.heads;
    let_later_kernels_start();
    wait_for_earlier_kernels();
    if (item >= p.all_heads) return;
    for (int token = blockIdx.y; token < p.tokens; token += gridDim.y) {
        const int place = p.slot_mapping[token];
        if (place < 0) continue;
        const int block = place / p.block_size, slot = place % p.block_size;
        const long long from =
            values ? token * p.value_token + head * p.value_head : token * p.key_token + head * p.key_head;
        const DATA_T* source = static_cast<const DATA_T*>(values ? p.value : p.key) + from;
        float numbers[PASSES][RUN] = {};
        float largest = 0.0f;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const int run = pass * 32 + lane;
            Access<DATA_T, RUN> read;
            if (run >= RUNS) continue;
            read.load(source + run * RUN);
            read.unpack(numbers[pass]);
#pragma unroll
            for (int i = 0; i < RUN; ++i) largest = larger(largest, fabsf(numbers[pass][i]));
        }
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2) largest = larger(largest, __shfl_xor_sync(~0u, largest, mask));
        const float scale = scale_of(largest);
        E4m3* to = static_cast<E4m3*>(p.kv_pool) + values * p.pool_values + block * p.pool_block + slot * p.pool_slot +
                   head * p.pool_head;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const int run = pass * 32 + lane;
            if (run >= RUNS) continue;
            Access<E4m3, RUN> written;
            written.pack(numbers[pass], 1.0f / scale);
            written.store(to + run * RUN);
        }
        if (lane == 0)
            p.kv_scales[values * p.scales_values + block * p.scales_block + head * p.scales_head + slot] = scale;
    }
}
