// Keys and values of e4m3 on their way to shared memory: read to registers, multiplied by their scales, and stored in
// the type of the queries, so that products are the same as without scales. For CACHE_T, the type of the pool.
#pragma once

#include "common/bytes.cuh"
#include "common/mma.cuh"
#include "paged_attention/prefill_tiles.cuh"

constexpr bool IS_FP8 = sizeof(CACHE_T) == 1;
static_assert(!IS_FP8 || (sizeof(DATA_T) == 2 && HEAD_DIM % 16 == 0), "e4m3 is multiplied as 16-bit numbers");

// What places of keys count, in elements, so that 31 bits are enough: 16 bytes (32 GiB of keys), or with WIDE_POOL
// heads, of which all strides of the pool are multiples then.
#ifdef WIDE_POOL
constexpr int KEY_UNIT = HEAD_DIM;
#else
constexpr int KEY_UNIT = 16 / sizeof(CACHE_T);
#endif

// Where the key at a position lies in the pool: its block and slot, where it begins in KEY_UNITs as key_unit() says,
// and with e4m3 the scales of key and value; zeros and a scale of 0 where it is not read.
struct KeyPlace {
    int unit = -1, block = -1, slot = 0;
    float key_scale = 0.0f, value_scale = 0.0f;

    __device__ __forceinline__ KeyPlace() {}
    __device__ __forceinline__ KeyPlace(const PagedAttention& p, int head, int block, int position)
        : unit(key_unit<KEY_UNIT>(p, block, position)), block(block), slot(position % p.block_size) {
        if (!IS_FP8 || unit < 0) return;
        const float* scale = p.kv_scales + block * p.scales_block + head * p.scales_head + position % p.block_size;
        key_scale = scale[0];
        value_scale = scale[p.scales_values];
    }
};

// Four e4m3 in units of `unit`. Hopper converts by an instruction of its own, which leaves the logic to the softmax.
__device__ __forceinline__ void floats_from_e4m3(float (&four)[4], float& unit, unsigned bytes) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    unsigned pairs[2];
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high;}"
        : "=r"(pairs[0]), "=r"(pairs[1])
        : "r"(bytes));
    const float2 first = Mma<__half>::unpack(pairs[0]), second = Mma<__half>::unpack(pairs[1]);
    four[0] = first.x, four[1] = first.y, four[2] = second.x, four[3] = second.y;
    unit = 1.0f;
#else
    floats_from_bytes(four, bytes, E4m3());
    unit = ByteCode<E4m3>::UNIT;
#endif
}

// Eight numbers times `scale`.
template <typename T>
__device__ __forceinline__ uint4 unit_from_e4m3(uint2 numbers, float scale) {
    const unsigned words[2] = {numbers.x, numbers.y};
    unsigned pairs[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float four[4], unit;
        floats_from_e4m3(four, unit, words[i]);
        const float factor = scale * unit;
        pairs[2 * i] = Mma<T>::pack(four[0] * factor, four[1] * factor);
        pairs[2 * i + 1] = Mma<T>::pack(four[2] * factor, four[3] * factor);
    }
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// The numbers of ROWS keys of a warp, or of their values, between global and shared memory; rows of COLUMNS numbers.
// COUNT: units of 16 numbers that a lane holds at a time, of those that it moves.
template <int ROWS, int COLUMNS, int COUNT = (ROWS * COLUMNS / 16 + 31) / 32>
struct HeldRows {
    static constexpr int UNITS = COLUMNS / 16, PARTS = (ROWS * UNITS + 32 * COUNT - 1) / (32 * COUNT);
    uint4 numbers[COUNT];

    __device__ __forceinline__ void load(const E4m3* source, int unit_of_lane, int part = 0) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int index = index_of(part, i), row = min(index / UNITS, ROWS - 1), column = index % UNITS * 16;
            const long long from = __shfl_sync(~0u, unit_of_lane, row) * static_cast<long long>(KEY_UNIT);
            const bool inside = from >= 0 && column < HEAD_DIM && index < ROWS * UNITS;
            numbers[i] = inside ? *reinterpret_cast<const uint4*>(source + from + column) : make_uint4(0u, 0u, 0u, 0u);
        }
    }
    // The same of consecutive slots, `stride` numbers apart, of which those with inside(row) are read.
    template <typename Inside>
    __device__ __forceinline__ void load_run(const E4m3* source, long long stride, const Inside& inside) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int index = index_of(0, i), row = index / UNITS, column = index % UNITS * 16;
            const bool read = index < ROWS * UNITS && inside(row) && column < HEAD_DIM;
            numbers[i] = read ? *reinterpret_cast<const uint4*>(source + row * stride + column)
                              : make_uint4(0u, 0u, 0u, 0u);
        }
    }
    // place(row, unit): where eight numbers of type T go, row of the warp.
    template <typename T = DATA_T, typename Place>
    __device__ __forceinline__ void store(float scale_of_lane, const Place& place, int part = 0) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int index = index_of(part, i), row = min(index / UNITS, ROWS - 1), unit = index % UNITS * 2;
            const float scale = __shfl_sync(~0u, scale_of_lane, row);
            const uint4 low = unit_from_e4m3<T>(make_uint2(numbers[i].x, numbers[i].y), scale);
            const uint4 high = unit_from_e4m3<T>(make_uint2(numbers[i].z, numbers[i].w), scale);
            if (index >= ROWS * UNITS) continue;
            *reinterpret_cast<uint4*>(place(row, unit)) = low;
            *reinterpret_cast<uint4*>(place(row, unit + 1)) = high;
        }
    }

private:
    __device__ static __forceinline__ int index_of(int part, int i) {
        return (part * COUNT + i) * 32 + static_cast<int>(threadIdx.x % 32);
    }
};
