// The argument of the chunked kernels of gated_delta_rule, and what the first leaves for the second.
#pragma once

#include "common/element.cuh"
#include "common/rows.cuh"

// Tokens that are handled as one set of matrices, and the side of the blocks that their triangles are made of.
constexpr int CHUNK = 64;
constexpr int BLOCK = 16;

// Strides count elements; see GatedDeltaDecode.
struct GatedDeltaPrefill {
    Rows rows;
    const void* q;
    const void* k;
    const void* v;
    const float* g;      // row r, token t, value head h: r * g_row + t * g_token + h * (number of decays)
    const void* beta;
    const void* state;
    void* o;
    void* state_out;
    void* chunks;        // PreparedChunk [chunk slot][value head]
    unsigned* waiting;   // [chunk slot][value head]: blocks that have yet to read the chunk; null: they need not ask
    int64_t q_row;
    int64_t q_token;
    int64_t q_head;
    int64_t k_row;
    int64_t k_token;
    int64_t k_head;
    int64_t v_row;
    int64_t v_token;
    int64_t v_head;
    int64_t g_row;
    int64_t g_token;
    int64_t beta_row;
    int64_t beta_token;
    int64_t o_row;
    int64_t o_token;
    int64_t o_head;
    int64_t state_slot;
    int64_t state_out_slot;
    int values_per_key;
    float scale;
    int value_heads;
    int row_chunks;      // dense: chunk slots of a row
    int key_heads;
    int readers;         // blocks that read a chunk
    int rows_at_once;    // whose blocks of the second kernel run at the same time
    int together;        // whether the second kernel runs together with the first, all of whose blocks run at once
};

// Products of the tokens of a chunk with each other. 16-bit data have half in place of bfloat16 here: both factors stay
// small, and its three bits more are what the sum over a chunk needs.
template <typename T>
struct InnerType {
    using type = __half;
};
template <>
struct InnerType<float> {
    using type = float;
};
// Written differences are kept at this share of their size, which moves the range of half to 1e-6 .. 1e6.
constexpr float INNER_SHARE = 1.0f / 16.0f;

// A lower triangle of CHUNK x CHUNK as its blocks of 16 x 16, column after column: those of 16 columns are one run of
// rows, from the diagonal down. Rows of a block have 16-byte units, which are permuted so that eight neighbouring rows
// of one unit cover all banks (of 16 bits: the hardware's 32-byte swizzle).
template <typename T>
struct Triangle {
    static constexpr int UNIT = 16 / sizeof(T), UNITS = BLOCK / UNIT;  // of a row of a block
    static constexpr int ELEMENTS = CHUNK / BLOCK * (CHUNK / BLOCK + 1) / 2 * BLOCK * BLOCK;

    __device__ static __forceinline__ int unit(int row, int index) {
        const int column = index * UNIT, i = row / BLOCK, j = column / BLOCK;
        return (first_block(j) + i - j) * (BLOCK * BLOCK) + first_unit(row % BLOCK, index % UNITS);
    }
    // Of the first block.
    __device__ static __forceinline__ int first_unit(int row, int index) {
        return row * BLOCK + (index ^ row * UNITS / 8 % UNITS) * UNIT;
    }
    // The number of block (j, j).
    __host__ __device__ static constexpr int first_block(int j) { return j * (2 * CHUNK / BLOCK + 1 - j) / 2; }
    __device__ static __forceinline__ int at(int row, int column) { return unit(row, column / UNIT) + column % UNIT; }
};

// Everything about a chunk of one value head that does not depend on the state. Indices are tokens of the chunk.
template <typename T>
struct PreparedChunk {
    alignas(16) T inverse[Triangle<T>::ELEMENTS];  // of the unit triangle of the delta rule, without its diagonal
    T scores[Triangle<T>::ELEMENTS];               // weights of differences in o
    float read[CHUNK];        // of k @ state in the prediction of v
    float beta[CHUNK];        // of the difference
    float from_start[CHUNK];  // of q @ state in o
    float write[CHUNK];       // of k in the new state
    float total;              // decay of the state over the chunk
    float unused[3];
};

// The same with one decay per key channel. Keys and queries are of length 1, and have the decays in them: those from
// the start of the chunk on, and of `write` those to its end. The state is kept at INNER_SHARE of its size too.
template <typename T, int TILE_ELEMENTS, int KEYS>
struct PreparedChannels {
    alignas(128) T k_read[TILE_ELEMENTS];
    T q_read[TILE_ELEMENTS];
    T k_write[TILE_ELEMENTS];
    PreparedChunk<T> chunk;  // without its total
    float total[KEYS];       // decay of the state over the chunk
};

// The second kernel reads after this what the first wrote before it. Every reader takes its share back, which leaves
// zeros.
__device__ __forceinline__ void allow_readers(unsigned* waiting, int readers) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(waiting), "r"(readers) : "memory");
}
__device__ __forceinline__ unsigned readers_of(const unsigned* waiting) {
    unsigned readers;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(readers) : "l"(waiting) : "memory");
    return readers;
}
__device__ __forceinline__ void leave_as_reader(unsigned* waiting) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(waiting), "r"(-1) : "memory");
}

// Where the chunks of a row begin among the chunk slots. Packed rows: a row of n tokens from token b on needs at most
// (b + n) / CHUNK + 1 - b / CHUNK slots, so that those of neighbouring rows do not meet.
__device__ __forceinline__ int64_t first_chunk_slot(const GatedDeltaPrefill& p, const RowView& view, int row) {
    return p.rows.query_start_loc ? view.first_token / CHUNK + row : int64_t(row) * p.row_chunks;
}
