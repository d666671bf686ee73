// y = x W^T for a weight W [rows, columns] as stored, row after row, or of few bits in tiles.
#pragma once

#include <cstdint>

namespace cpu {

enum Type : int64_t { int4 = 0, int8 = 1, float16 = 2, bfloat16 = 3, float32 = 4, e2m1 = 5, e4m3 = 6 };

// Bits of one number of a type.
constexpr int bits_of(int64_t type) {
    return type == int4 || type == e2m1 ? 4 : type == int8 || type == e4m3 ? 8 : type == float32 ? 32 : 16;
}

// What is added to twice an e2m1 number so that it is not negative, and the sum by the number's bits.
constexpr int e2m1_offset = 12;
alignas(16) constexpr uint8_t e2m1_sums[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

constexpr int64_t pad(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// Rows of a tile, and bytes of the scales of a span.
constexpr int64_t tile_rows = 16, span_scales = 64;

// data: float16, bfloat16, float32 or e4m3 numbers, row after row without gaps; others in tiles.
// A tile is a sequence of spans, so that memory is read in its order. A span has 64 bytes of scales [groups, 16] of
// type scale_type: of two groups, or of one with float32 scales. The numbers of these groups follow as 32-bit words
// [n, 16]: one word has 8 or 4 neighbouring numbers of one row, as they are stored, but 4-bit numbers are unsigned,
// with an offset of 8. The last span may have one group instead of two. The rows after the last one are zeros.
// scales: of e4m3 numbers [rows, columns / group]; of tiles [rows], by which whole rows are multiplied, or null.
// zeros: zero points of integers in tiles, [tiles, groups, 16], or null.
// block: number of consecutive inputs that are rounded to 8 bits with one scale; it divides group.
struct Weight {
    const uint8_t* data;
    const float* scales;
    const int8_t* zeros;
    Type type, scale_type;
    int64_t rows, columns, group, block;

    bool is_tiled() const { return type == int4 || type == int8 || type == e2m1; }
    int64_t groups() const { return columns / group; }
    int64_t row_bytes() const { return columns * bits_of(type) / 8; }
    int64_t groups_at_once() const { return 32 / bits_of(scale_type); }
    int64_t spans() const { return pad(groups(), groups_at_once()) / groups_at_once(); }
    int64_t tile_bytes() const { return spans() * span_scales + tile_rows * row_bytes(); }
    int64_t blocks() const { return columns / block; }
    // `count` rows from row `first` on, both multiples of tile_rows where it is in tiles.
    Weight part(int64_t first, int64_t count) const {
        Weight w = *this;
        w.data += is_tiled() ? first / tile_rows * tile_bytes() : first * row_bytes();
        if (zeros) w.zeros += first * groups();
        if (scales) w.scales += first * (is_tiled() ? 1 : groups());
        w.rows = count;
        return w;
    }
};

// `count` inputs rounded to 8 bits, in groups that a kernel reads together: first as many of the largest size as there
// are, then smaller ones. Of a group of `size` inputs that begins with input m, numbers + m * columns are [words, size]
// of 8 numbers for 4-bit weights or of 4 for 8-bit ones: the inputs of one word of the weight. Of 8 numbers, those at
// even columns come first, because a byte of the weight has an even column in its low half. scales and
// offsets + m * blocks are [blocks, size]: the scale of each block, and the initial value of its integer product,
// because kernels read weights as unsigned numbers. totals + m * blocks: the sum of its numbers.
struct Rounded {
    int8_t* numbers;
    float* scales;
    int32_t *offsets, *totals;
    int64_t count;
};

// Columns of a row that `dots` reads at once, at most.
constexpr int64_t dot_columns = 64;

// Most columns of a panel that `panels` reads at once: its numbers and those of a few inputs stay in the first cache.
constexpr int64_t panel_columns = 256;
// Numbers from a part of one packed input to that of the next one: multiples of a power of two would contend for the
// same places of the cache.
constexpr int64_t packed_stride = panel_columns + 16;

}  // namespace cpu
