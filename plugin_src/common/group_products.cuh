// Products of a warpgroup with its left operand in registers: D[64][N] (+)= A[64][16] * B[16][N], where B is stored as
// N rows of 16 neighbours in shared memory (sm_90a only; see common/wgmma.cuh for accumulators and fragments).
#pragma once

#include "common/wgmma.cuh"

// 16 neighbours of each of N rows of a panel of 64 columns are operand() of common/wgmma.cuh, moved by NEXT_16_COLUMNS.
// This is one for rows of 16 columns alone: eight rows are 256 bytes, unit u of row r lies at u ^ (r / 4 % 2).
__device__ __forceinline__ unsigned long long narrow_operand(const void* address) {
    const unsigned long long start = shared_address(address) >> 4, eight_rows = 8 * 32 >> 4, swizzle_32_bytes = 3;
    return start | 1ull << 16 | eight_rows << 32 | swizzle_32_bytes << 62;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// d: N / 2 accumulators; without `add`, what they hold is replaced.
template <typename T, int N>
struct GroupProduct;

#define GROUP_D8(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
    "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define GROUP_D16(d, i) GROUP_D8(d, i), GROUP_D8(d, i + 8)
#define GROUP_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define GROUP_16 GROUP_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define GROUP_24 GROUP_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define GROUP_32 GROUP_24 ",%24,%25,%26,%27,%28,%29,%30,%31"

#define GROUP_PRODUCT(TYPE, NAME, N, LIST, A0, A1, A2, A3, B, ADD, ...)                                                \
    template <>                                                                                                        \
    struct GroupProduct<TYPE, N> {                                                                                     \
        __device__ static __forceinline__ void multiply(float* d, const unsigned (&a)[4],                              \
                                                        unsigned long long b, int add) {                               \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." \
                         NAME "." NAME " {" LIST "}, {%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B ", p, 1, 1, 0;}"     \
                         : __VA_ARGS__                                                                                 \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                              \
        }                                                                                                              \
    };
#define GROUP_PRODUCTS(TYPE, NAME)                                                                                     \
    GROUP_PRODUCT(TYPE, NAME, 16, GROUP_8, 8, 9, 10, 11, 12, 13, GROUP_D8(d, 0))                                       \
    GROUP_PRODUCT(TYPE, NAME, 32, GROUP_16, 16, 17, 18, 19, 20, 21, GROUP_D16(d, 0))                                   \
    GROUP_PRODUCT(TYPE, NAME, 48, GROUP_24, 24, 25, 26, 27, 28, 29, GROUP_D16(d, 0), GROUP_D8(d, 16))                  \
    GROUP_PRODUCT(TYPE, NAME, 64, GROUP_32, 32, 33, 34, 35, 36, 37, GROUP_D16(d, 0), GROUP_D16(d, 16))

GROUP_PRODUCTS(__nv_bfloat16, "bf16")
GROUP_PRODUCTS(__half, "f16")

#undef GROUP_PRODUCTS
#undef GROUP_PRODUCT
#undef GROUP_32
#undef GROUP_24
#undef GROUP_16
#undef GROUP_8
#undef GROUP_D16
#undef GROUP_D8

// Keeps operands of products in flight where they are until here.
template <int COUNT>
__device__ __forceinline__ void held_until_here(const unsigned (&a)[COUNT][4]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        asm volatile("" ::"r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]) : "memory");
}

#endif
