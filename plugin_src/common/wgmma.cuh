// Matrix products of a warpgroup (4 warps) on Hopper's tensor cores, sm_90a only: D[64][N] (+)= A[64][16] * B[16][N],
// with B, and A unless it is in registers, in shared memory.
//
// Tiles lie in panels of 64 columns of 16 bits: row r of a panel is 128 bytes at r * 128, and its 16-byte unit u lies
// at u ^ (r % 8) (the hardware's 128-byte swizzle; panels start at multiples of 1024 bytes).
// Accumulators: warp w holds rows 16w + g and 16w + g + 8 with lane = 4 * g + t; d[4 * n + i] is row g + i / 2 * 8,
// column 8 * n + 2 * t + i % 2. A fragments in registers are those of the warp-level product of 16 rows.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/async_copy.cuh"

constexpr int PANEL = 64;        // columns
constexpr int ROW_BYTES = 128;   // of a panel

// Byte offset of a 16-byte unit of a tile of ROWS rows.
template <int ROWS>
__device__ __forceinline__ int panel_unit(int row, int unit) {
    return unit / 8 * (ROWS * ROW_BYTES) + row * ROW_BYTES + ((unit & 7) ^ (row & 7)) * 16;
}

// The operand at `address`. By rows: 8-row groups follow each other at 1024 bytes. For a transposed operand (its
// columns contiguous), the same tile read by columns, `next_panel` is the distance of 64-column panels.
__device__ __forceinline__ unsigned long long operand(const void* address, int next_panel = 16) {
    const unsigned long long start = shared_address(address) >> 4;
    const unsigned long long panels = next_panel >> 4, eight_rows = 8 * ROW_BYTES >> 4, swizzle_128_bytes = 1;
    return start | panels << 16 | eight_rows << 32 | swizzle_128_bytes << 62;
}

// Operands 16 columns, and 16 rows, further on.
constexpr unsigned long long NEXT_16_COLUMNS = 32 >> 4;
constexpr unsigned long long NEXT_16_ROWS = (16 * ROW_BYTES) >> 4;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The number of registers of each thread of this warpgroup, which it gives up or claims.
template <int COUNT>
__device__ __forceinline__ void shrink_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void grow_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Four 8x8 matrices of 16 bits, in the layout of accumulators; lane 8 * i + r names the address of row r of matrix i.
__device__ __forceinline__ void store_matrices(unsigned row, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

// The same, each matrix transposed: the address is that of a column.
__device__ __forceinline__ void store_matrices_transposed(unsigned column, unsigned a, unsigned b, unsigned c,
                                                          unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(column), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

// Orders register accesses before the products that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Makes this thread's ordinary writes to shared memory visible to later products, after a barrier.
__device__ __forceinline__ void fence_for_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Tells the compiler that products in flight change the accumulators.
template <int N>
__device__ __forceinline__ void in_flight(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define WGMMA_D8(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
    "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define WGMMA_D16(d, i) WGMMA_D8(d, i), WGMMA_D8(d, i + 8)
#define WGMMA_D32(d, i) WGMMA_D8(d, i), WGMMA_D8(d, i + 8), WGMMA_D8(d, i + 16), WGMMA_D8(d, i + 24)
#define WGMMA_LIST16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_LIST32 WGMMA_LIST16 \
    ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_LIST64 WGMMA_LIST32 \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
    ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

// D[64][32] = A * B (+ D where `add`); A and B by rows: A [64][k], B [32][k].
template <typename T>
__device__ __forceinline__ void multiply_rows(float (&d)[16], unsigned long long a, unsigned long long b, int add);
// D[64][64] = A * B (+ D where `add`); A and B by rows: A [64][k], B [64][k].
template <typename T>
__device__ __forceinline__ void multiply_rows(float (&d)[32], unsigned long long a, unsigned long long b, int add);
// D[64][128] = A * B (+ D where `add`); A by rows [64][k], B by rows [128][k].
template <typename T>
__device__ __forceinline__ void multiply_rows(float (&d)[64], unsigned long long a, unsigned long long b, int add);
// D[64][64] += A * B; B [k][64] by columns.
template <typename T>
__device__ __forceinline__ void multiply_columns(float (&d)[32], const unsigned (&a)[4], unsigned long long b);
// D[64][128] += A * B; B [k][128] by columns.
template <typename T>
__device__ __forceinline__ void multiply_columns(float (&d)[64], const unsigned (&a)[4], unsigned long long b);
// D[64][32] += A * B; A [k][64] by columns, B [32][k] by rows.
template <typename T>
__device__ __forceinline__ void multiply_transposed(float (&d)[16], unsigned long long a, unsigned long long b);
// D[64][64] += A * B; A [k][64] by columns, B [64][k] by rows.
template <typename T>
__device__ __forceinline__ void multiply_transposed(float (&d)[32], unsigned long long a, unsigned long long b);

#define WGMMA_FUNCTIONS(TYPE, NAME)                                                                                    \
    template <>                                                                                                        \
    __device__ __forceinline__ void multiply_rows<TYPE>(float(&d)[16], unsigned long long a,                           \
                                                        unsigned long long b, int add) {                               \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32." NAME "." NAME \
                     " {" WGMMA_LIST16 "}, %16, %17, p, 1, 1, 0, 0;}"                                                  \
                     : WGMMA_D16(d, 0)                                                                                 \
                     : "l"(a), "l"(b), "r"(add));                                                                      \
    }                                                                                                                  \
    template <>                                                                                                        \
    __device__ __forceinline__ void multiply_transposed<TYPE>(float(&d)[16], unsigned long long a,                     \
                                                              unsigned long long b) {                                  \
        asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32." NAME "." NAME " {" WGMMA_LIST16                     \
                     "}, %16, %17, 1, 1, 1, 1, 0;"                                                                     \
                     : WGMMA_D16(d, 0)                                                                                 \
                     : "l"(a), "l"(b));                                                                                \
    }                                                                                                                  \
    template <>                                                                                                        \
    __device__ __forceinline__ void multiply_transposed<TYPE>(float(&d)[32], unsigned long long a,                     \
                                                              unsigned long long b) {                                  \
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " {" WGMMA_LIST32                     \
                     "}, %32, %33, 1, 1, 1, 1, 0;"                                                                     \
                     : WGMMA_D32(d, 0)                                                                                 \
                     : "l"(a), "l"(b));                                                                                \
    }                                                                                                                  \
    template <>                                                                                                        \
    __device__ __forceinline__ void multiply_rows<TYPE>(float(&d)[32], unsigned long long a,                           \
                                                        unsigned long long b, int add) {                               \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME \
                     " {" WGMMA_LIST32 "}, %32, %33, p, 1, 1, 0, 0;}"                                                  \
                     : WGMMA_D32(d, 0)                                                                                 \
                     : "l"(a), "l"(b), "r"(add));                                                                      \
    }                                                                                                                  \
    template <>                                                                                                        \
    __device__ __forceinline__ void multiply_rows<TYPE>(float(&d)[64], unsigned long long a,                           \
                                                        unsigned long long b, int add) {                               \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." NAME "."     \
                     NAME " {" WGMMA_LIST64 "}, %64, %65, p, 1, 1, 0, 0;}"                                             \
                     : WGMMA_D32(d, 0), WGMMA_D32(d, 32)                                                               \
                     : "l"(a), "l"(b), "r"(add));                                                                      \
    }                                                                                                                  \
    template <>                                                                                                        \
    __device__ __forceinline__ void multiply_columns<TYPE>(float(&d)[32], const unsigned(&a)[4],                       \
                                                           unsigned long long b) {                                     \
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " {" WGMMA_LIST32                     \
                     "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"                                                          \
                     : WGMMA_D32(d, 0)                                                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                            \
    }                                                                                                                  \
    template <>                                                                                                        \
    __device__ __forceinline__ void multiply_columns<TYPE>(float(&d)[64], const unsigned(&a)[4],                       \
                                                           unsigned long long b) {                                     \
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." NAME "." NAME " {" WGMMA_LIST64                    \
                     "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"                                                          \
                     : WGMMA_D32(d, 0), WGMMA_D32(d, 32)                                                               \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                            \
    }

WGMMA_FUNCTIONS(__nv_bfloat16, "bf16")
WGMMA_FUNCTIONS(__half, "f16")

#undef WGMMA_FUNCTIONS
#undef WGMMA_LIST64
#undef WGMMA_LIST32
#undef WGMMA_LIST16
#undef WGMMA_D32
#undef WGMMA_D16
#undef WGMMA_D8

#endif
