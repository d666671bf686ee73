// y = x W^T for a weight W [rows, columns] that is read as the artifact's file stores it.
#pragma once

#include <cstdint>

namespace linear {

enum Type : int64_t { int4 = 0, int8 = 1, float16 = 2, bfloat16 = 3, float32 = 4 };

// Bits of one number of a type.
constexpr int bits_of(int64_t type) { return type == int4 ? 4 : type == int8 ? 8 : type == float32 ? 32 : 16; }

// numbers: row after row without gaps; 4-bit numbers are two to a byte, the low half first.
// scales [rows, columns / group] of integers, of type scale_type; group 0: one scale for all.
// block: number of consecutive inputs that are rounded to 8 bits with one scale; it divides columns and group.
struct Weight {
    const uint8_t* numbers;
    const uint8_t* scales;
    Type type, scale_type;
    int64_t rows, columns, group, block;

    int64_t row_bytes() const { return columns * bits_of(type) / 8; }
    int64_t blocks() const { return columns / block; }
};

// Inputs rounded to 8 bits. numbers [rows, stride]: for 4-bit weights the numbers at even columns, then, from
// stride / 2 on, those at odd ones, then zeros. scales and offsets [rows, padded_blocks]: the scale of each block,
// and the initial value of its integer product, because kernels read weights as unsigned numbers.
struct Rounded {
    int8_t* numbers;
    float* scales;
    int32_t* offsets;
    int64_t stride, padded_blocks;
};

constexpr int64_t pad(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// The kernels of one instruction set. Rows of x and y follow each other without gaps.
struct Kernels {
    // Outputs that one panel computes, and inputs with which panels are faster than dots.
    int64_t panel, panel_inputs;
    // Bytes of scratch memory for dots and panels of either kind, 64-byte aligned.
    int64_t (*scratch_bytes)(const Weight&);
    // Round x [columns] into row `row` of `out`.
    void (*round)(const Weight&, const float* x, int64_t row, const Rounded& out);
    // y[:, first:last] with rounded inputs: for a few, and for many of them.
    void (*rounded_dots)(const Weight&, const Rounded& x, int64_t count, float* y, int64_t first, int64_t last,
                         uint8_t* scratch);
    void (*rounded_panels)(const Weight&, const Rounded& x, int64_t count, float* y, int64_t first, int64_t last,
                           uint8_t* scratch);
    // The same in float32.
    void (*dots)(const Weight&, const float* x, int64_t count, float* y, int64_t first, int64_t last, uint8_t* scratch);
    void (*panels)(const Weight&, const float* x, int64_t count, float* y, int64_t first, int64_t last,
                   uint8_t* scratch);
};

// By instruction set; null where this processor, or this build, lacks it.
const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* neon_kernels();

enum Choice : int64_t { best = 0, portable = 1, avx2 = 2, avx512 = 3, neon = 4 };
const Kernels* chosen_kernels(int64_t choice);

}  // namespace linear
