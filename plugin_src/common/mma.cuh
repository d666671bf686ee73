// Warp-level matrix products D[16][8] += A[16][K] * B[K][8] on tensor cores (sm_80 and up), for tiles in shared memory.
//
// K is 16 for half and bfloat16, and 8 for float, which is computed as three TF32 products of split operands
// (a = a_hi + a_lo; the product a_lo * b_lo, 2^-22 of the result, is dropped).
// In a warp, lane = 4 * g + t. An accumulator holds rows g and g + 8, columns 2t and 2t + 1:
// c[0] (g, 2t), c[1] (g, 2t + 1), c[2] (g + 8, 2t), c[3] (g + 8, 2t + 1).
// A float fragment takes column 2t of K where the hardware has t, and 2t + 1 where it has t + 4: the order of K does
// not matter as long as A and B agree, and accumulators become A fragments of the next product without a shuffle.
#pragma once

#include "common/async_copy.cuh"
#include "common/element.cuh"

// Where element (row, column) of a [rows][COLUMNS] tile lies. Rows are made of 16-byte units; units are permuted, or
// rows padded, so that one unit of each of eight neighbouring rows covers all banks.
template <typename T, int COLUMNS>
struct TileLayout {
    static constexpr int UNIT = 16 / sizeof(T);
    static constexpr int UNITS = COLUMNS / UNIT;
    static constexpr bool SWIZZLED = UNITS % 8 == 0;
    static constexpr int PITCH = (SWIZZLED || UNITS % 2 ? UNITS : UNITS + 1) * UNIT;
    static_assert(COLUMNS % UNIT == 0, "rows are made of 16-byte units");

    __host__ __device__ static constexpr int elements(int rows) { return rows * PITCH; }
    __device__ static __forceinline__ int unit(int row, int index) {
        return row * PITCH + (SWIZZLED ? index ^ (row & 7) : index) * UNIT;
    }
    __device__ static __forceinline__ int at(int row, int column) {
        return unit(row, column / UNIT) + column % UNIT;
    }
};

// The same places, where all that a warp reads are found from one of them: the permutation of known steps is known. For
// matrices that begin at multiples of 16 columns.
template <typename T, int COLUMNS>
struct SteppedLayout : TileLayout<T, COLUMNS> {
    using Base = TileLayout<T, COLUMNS>;

    // unit(row + rows, index + step) from `at`, which is unit(row, index). rows: a multiple of 8; step: even; index: 0
    // or 1.
    __device__ static __forceinline__ int stepped(int at, int rows, int step) {
        if constexpr (!Base::SWIZZLED) return at + rows * Base::PITCH + step * Base::UNIT;
        return (at ^ (step % 8 * Base::UNIT)) + rows * Base::PITCH + step / 8 * 8 * Base::UNIT;
    }
};
template <typename L>
struct Steps {
    __device__ static __forceinline__ int unit(int row, int index, int rows, int step) {
        return L::unit(row + rows, index + step);
    }
};
template <typename T, int COLUMNS>
struct Steps<SteppedLayout<T, COLUMNS>> {
    __device__ static __forceinline__ int unit(int row, int index, int rows, int step) {
        using L = SteppedLayout<T, COLUMNS>;
        return L::stepped(L::unit(row, index), rows, step);
    }
};

template <typename T>
struct Mma {
    static constexpr int K = 16;

    struct A {
        unsigned r[4];
    };
    struct B {
        unsigned r[2];
    };

    // Two rounded elements, `low` in the low half.
    __device__ static __forceinline__ unsigned pack(float low, float high);
    __device__ static __forceinline__ float2 unpack(unsigned pair) {
        const Vector<T, 2> values = *reinterpret_cast<const Vector<T, 2>*>(&pair);
        return make_float2(to_float(values.data[0]), to_float(values.data[1]));
    }
    __device__ static __forceinline__ void load_matrices(unsigned (&r)[4], const T* tile, int offset) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(shared_address(tile + offset))
                     : "memory");
    }
    __device__ static __forceinline__ void load_transposed(unsigned (&r)[4], const T* tile, int offset) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(shared_address(tile + offset))
                     : "memory");
    }

    // Rows m..m+15 and columns k..k+15 of a tile [m][k].
    template <typename L>
    __device__ static __forceinline__ A load_a(const T* tile, int m, int k, int lane) {
        A a;
        load_matrices(a.r, tile, Steps<L>::unit(lane % 16, lane / 16, m, k / 8));
        return a;
    }
    // Columns m..m+15 and rows k..k+15 of a tile [k][m].
    template <typename L>
    __device__ static __forceinline__ A load_a_transposed(const T* tile, int m, int k, int lane) {
        A a;
        load_transposed(a.r, tile, L::unit(k + lane % 8 + lane / 16 * 8, m / 8 + lane / 8 % 2));
        return a;
    }
    // The same, row k multiplied by scale[k].
    template <typename L>
    __device__ static __forceinline__ A load_a_scaled(const T* tile, const float* scale, int m, int k, int lane) {
        A a;
        load_transposed(a.r, tile, L::unit(k + lane % 8 + lane / 16 * 8, m / 8 + lane / 8 % 2));
        const int t = lane % 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 s = *reinterpret_cast<const float2*>(scale + k + 2 * t + i / 2 * 8);
            const float2 v = unpack(a.r[i]);
            a.r[i] = pack(v.x * s.x, v.y * s.y);
        }
        return a;
    }
    // Columns n..n+15 of B, stored as rows of a tile [n][k], at k..k+15.
    template <typename L>
    __device__ static __forceinline__ void load_b(B (&b)[2], const T* tile, int n, int k, int lane) {
        unsigned r[4];
        load_matrices(r, tile, Steps<L>::unit(lane % 8 + lane / 16 * 8, lane / 8 % 2, n, k / 8));
        b[0] = {{r[0], r[1]}};
        b[1] = {{r[2], r[3]}};
    }
    // Columns n..n+15 of B, stored as columns of a tile [k][n], at k..k+15.
    template <typename L>
    __device__ static __forceinline__ void load_b_transposed(B (&b)[2], const T* tile, int n, int k, int lane) {
        unsigned r[4];
        load_transposed(r, tile, Steps<L>::unit(lane % 16, lane / 16, k, n / 8));
        b[0] = {{r[0], r[1]}};
        b[1] = {{r[2], r[3]}};
    }
    // K columns of accumulators as an A fragment: the tiles c[0] and c[1], each of 8 columns.
    __device__ static __forceinline__ A a_from_accumulators(const float (*c)[4]) {
        return {{pack(c[0][0], c[0][1]), pack(c[0][2], c[0][3]), pack(c[1][0], c[1][1]), pack(c[1][2], c[1][3])}};
    }
    // Rows 8 * half and on of a left operand as the columns of a right one.
    __device__ static __forceinline__ B b_from_a(const A& a, int half) { return {{a.r[half], a.r[half + 2]}}; }
    __device__ static __forceinline__ void multiply(float (&c)[4], const A& a, const B& b);
};

template <>
__device__ __forceinline__ unsigned Mma<__nv_bfloat16>::pack(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

template <>
__device__ __forceinline__ unsigned Mma<__half>::pack(float low, float high) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

template <>
__device__ __forceinline__ void Mma<__nv_bfloat16>::multiply(float (&c)[4], const A& a, const B& b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
}

template <>
__device__ __forceinline__ void Mma<__half>::multiply(float (&c)[4], const A& a, const B& b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
}

template <>
struct Mma<float> {
    static constexpr int K = 8;

    struct A {
        unsigned high[4], low[4];
    };
    struct B {
        unsigned high[2], low[2];
    };

    // The upper part is rounded by hand: the conversion takes six instructions. Of the lower one the hardware drops
    // what is too much, 2^-22 of the value; where the upper part of a NaN is none, the lower one is.
    __device__ static __forceinline__ void split(unsigned& high, unsigned& low, float value) {
        high = (__float_as_uint(value) + 0x1000u) & 0xffffe000u;
        low = __float_as_uint(value - __uint_as_float(high));
    }

    template <typename L>
    __device__ static __forceinline__ A load_a(const float* tile, int m, int k, int lane) {
        A a;
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) split(a.high[i], a.low[i], tile[L::at(m + g + i % 2 * 8, k + 2 * t + i / 2)]);
        return a;
    }
    template <typename L>
    __device__ static __forceinline__ A load_a_transposed(const float* tile, int m, int k, int lane) {
        A a;
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) split(a.high[i], a.low[i], tile[L::at(k + 2 * t + i / 2, m + g + i % 2 * 8)]);
        return a;
    }
    template <typename L>
    __device__ static __forceinline__ A load_a_scaled(const float* tile, const float* scale, int m, int k, int lane) {
        A a;
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = k + 2 * t + i / 2;
            split(a.high[i], a.low[i], tile[L::at(row, m + g + i % 2 * 8)] * scale[row]);
        }
        return a;
    }
    template <typename L>
    __device__ static __forceinline__ void load_b(B (&b)[2], const float* tile, int n, int k, int lane) {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            split(b[i / 2].high[i % 2], b[i / 2].low[i % 2], tile[L::at(n + g + i / 2 * 8, k + 2 * t + i % 2)]);
        }
    }
    template <typename L>
    __device__ static __forceinline__ void load_b_transposed(B (&b)[2], const float* tile, int n, int k, int lane) {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            split(b[i / 2].high[i % 2], b[i / 2].low[i % 2], tile[L::at(k + 2 * t + i % 2, n + g + i / 2 * 8)]);
        }
    }
    __device__ static __forceinline__ A a_from_accumulators(const float (*c)[4]) {
        A a;
#pragma unroll
        for (int i = 0; i < 4; ++i) split(a.high[i], a.low[i], c[0][i / 2 + i % 2 * 2]);
        return a;
    }
    __device__ static __forceinline__ void multiply_tf32(float (&c)[4], const unsigned (&a)[4],
                                                         const unsigned (&b)[2]) {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
    __device__ static __forceinline__ B b_from_a(const A& a, int half) {
        return {{a.high[half], a.high[half + 2]}, {a.low[half], a.low[half + 2]}};
    }
    __device__ static __forceinline__ void multiply(float (&c)[4], const A& a, const B& b) {
        multiply_tf32(c, a.low, b.high);
        multiply_tf32(c, a.high, b.low);
        multiply_tf32(c, a.high, b.high);
    }
};
