// First kernel of chunked prefill with one decay per key channel: products of a chunk's tokens with each other, for all
// chunks at once.
//
// With e_t the decays of token t and D(j, i) = e_{j+1} ... e_i (a product for each channel), for tokens j before i:
//   L_ij = beta_i sum_d k'_i D(j, i) k'_j,   inverse = (I + L)^-1,
//   scores_ij = sum_d q'_i D(j, i) k'_j (j = i included).
// D(j, i) has no factors for i and j that both are at most 1, unless it is taken from a token between them. A warp has
// sixteen tokens and halves them again and again: in the run of 2h tokens whose halves have one of i and j each, D(j,
// i) is the product of the decays from the run's middle up to i (`after`) and of those behind j up to the middle
// (`before`). Tokens of two such blocks are multiplied with the decays from the later one's start on, and to the
// earlier one's end, times those of the blocks between. All factors are products of decays, so that nothing cancels
// and nothing overflows, however strong decays are.
//
// Macros: DATA_T; KEY_SIZE; NORMED; ALIGNED; PANELS (whether tiles are left as panels for prefill_groups.cu). Grid: x
// covers the chunks of a row, y the value heads, z the rows.
#include "common/launch.cuh"
#include "common/wgmma.cuh"
#include "gated_delta_rule/prefill_channel_decays.cuh"
#include "gated_delta_rule/prefill_tiles.cuh"

namespace {

constexpr int BLOCKS = CHUNK / BLOCK;
#if __CUDA_ARCH__ >= 1000  // whose compiler needs a few more registers
constexpr int MOST_BLOCKS = 3;
#else
constexpr int MOST_BLOCKS = 4;
#endif
constexpr int BLOCKS_AT_ONCE = sizeof(DATA_T) == 2 ? (KEY_SIZE <= 128 ? MOST_BLOCKS : 2) : 1;
constexpr float NORM_EPSILON = 1e-6f;

// Keys and queries as they are; of length 1, times the decays from the start of a token's block on.
struct Inputs {
    alignas(128) DATA_T k[Tile::elements(CHUNK)];
    alignas(128) DATA_T q[Tile::elements(CHUNK)];
};
struct Decayed {
    alignas(128) Inner k[TILE_ELEMENTS];
    alignas(128) Inner q[TILE_ELEMENTS];
};

struct Shared {
    // A warp replaces its tokens channel by channel; the square, of L and then of the inverse, comes once all tiles are
    // written.
    union {
        Inputs in;
        Decayed after;
        float square[Square::ELEMENTS];
    };
    alignas(128) Inner k_before[TILE_ELEMENTS];  // times the decays to the end of a token's block
    float decay[BLOCKS][KEY_SIZE];               // over each block
    float from_start[BLOCKS][KEY_SIZE];          // up to each block
    float to_end[BLOCKS][KEY_SIZE];              // behind it
    float beta[CHUNK];
    float k_unit[CHUNK], q_unit[CHUNK];          // to length 1
    float k_back[CHUNK], q_back[CHUNK];          // and from there to what the formulas have
    float own_score[CHUNK];                      // q k, of length 1, of each token
};

// Lengths of k and q of a warp's tokens, and scores of tokens with themselves.
__device__ __forceinline__ void measure_tokens(Shared& shared, float scale) {
    const int first = threadIdx.x / 32 * BLOCK;
    float sums[2][3] = {};
#pragma unroll 2
    for (int channel = 0; channel < KEY_SIZE; channel += CHANNELS) {
        Fragment keys, queries;
        load_fragment(keys, shared.in.k, first, channel);
        load_fragment(queries, shared.in.q, first, channel);
#pragma unroll
        for (int i = 0; i < 4 * TILES; ++i) {
            const float k = keys[i / 4][i % 4], q = queries[i / 4][i % 4];
            float(&of_row)[3] = sums[i % 4 / 2];
            of_row[0] = fmaf(k, k, of_row[0]);
            of_row[1] = fmaf(q, q, of_row[1]);
            of_row[2] = fmaf(q, k, of_row[2]);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            sums[half][i] += __shfl_xor_sync(~0u, sums[half][i], 1);
            sums[half][i] += __shfl_xor_sync(~0u, sums[half][i], 2);
        }
        if (threadIdx.x % 4 > 0) continue;
        const int t = first + lane_row() + half * 8;
        const float k_unit = rsqrtf(sums[half][0] + NORM_EPSILON), q_unit = rsqrtf(sums[half][1] + NORM_EPSILON);
        shared.k_unit[t] = k_unit;
        shared.q_unit[t] = q_unit;
        shared.k_back[t] = NORMED ? 1.0f : 1.0f / k_unit;
        shared.q_back[t] = NORMED ? scale : scale / q_unit;
        shared.own_score[t] = sums[half][2] * k_unit * q_unit;
    }
}

// g of a warp's tokens, as a fragment; zeros where the row has ended.
struct LogDecays {
    const float* from;  // of the lane's first row and column
    int64_t eight_tokens;
    bool valid[2];

    __device__ __forceinline__ LogDecays(const float* g, int64_t g_token, int tokens)
        : from(g + (threadIdx.x / 32 * BLOCK + lane_row()) * g_token + lane_column()), eight_tokens(8 * g_token) {
        const int token = threadIdx.x / 32 * BLOCK + lane_row();
        valid[0] = token < tokens;
        valid[1] = token + 8 < tokens;
    }
    __device__ __forceinline__ void load(Fragment& to, int channel) const {
#pragma unroll
        for (int n = 0; n < TILES; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float* pair = from + half * eight_tokens + channel + n * 8;
                float2 values = make_float2(0.0f, 0.0f);
                if (valid[half])
                    values = ALIGNED ? *reinterpret_cast<const float2*>(pair) : make_float2(pair[0], pair[1]);
                to[n][2 * half] = values.x;
                to[n][2 * half + 1] = values.y;
            }
    }
};

// Factors of products with keys of length 1: of a row of keys or of queries, and of a column.
__device__ __forceinline__ float row_factor(const Shared& shared, bool of_queries, int i) {
    return of_queries ? shared.q_back[i] * (1.0f / INNER_SHARE) : shared.beta[i] * shared.k_back[i];
}

// A block of scores on the diagonal, with zeros above it.
__device__ __forceinline__ void store_own_scores(const Shared& shared, Inner* scores, const BlockProducts& products) {
    const int first = threadIdx.x / 32 * BLOCK, g = lane_row(), column = lane_column();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int i = first + half * 8 + g;
        const float factor = row_factor(shared, true, i);
#pragma unroll
        for (int right = 0; right < 2; ++right) {
            float values[2] = {};
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int j = first + right * 8 + column + e;
                if (j > i) continue;
                const float product = right < half ? products.across[e] : products.of_eight(half, e, g, column + e);
                values[e] = factor * shared.k_back[j] * (i == j ? shared.own_score[i] : product);
            }
            *reinterpret_cast<Vector<Inner, 2>*>(scores + Triangle<Inner>::at(i, first + right * 8 + column)) = {
                from_float<Inner>(values[0]), from_float<Inner>(values[1])};
        }
    }
}

// The same block of L, transposed, below the diagonal.
__device__ __forceinline__ void store_own_triangle(Shared& shared, const BlockProducts& products) {
    const int first = threadIdx.x / 32 * BLOCK, g = lane_row(), column = lane_column();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int i = first + half * 8 + g;
        const float factor = row_factor(shared, false, i);
#pragma unroll
        for (int right = 0; right <= half; ++right)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int j = first + right * 8 + column + e;
                if (j >= i) continue;
                const float product = right < half ? products.across[2 + e]
                                                   : products.of_eight(half, 2 + e, g, column + e);
                shared.square[Square::at(j, i)] = factor * shared.k_back[j] * product;
            }
    }
}

// A warp's own sixteen tokens. Leaves their tiles and decays.
__device__ __forceinline__ void multiply_block(BlockProducts& products, Shared& shared, const LogDecays& log_decays) {
    const int warp = threadIdx.x / 32, first = warp * BLOCK;
    Fragment ahead;
    log_decays.load(ahead, 0);
    const float k_unit[2] = {shared.k_unit[first + lane_row()], shared.k_unit[first + lane_row() + 8]};
    const float q_unit[2] = {shared.q_unit[first + lane_row()], shared.q_unit[first + lane_row() + 8]};
#pragma unroll 1
    for (int channel = 0; channel < KEY_SIZE; channel += CHANNELS) {
        Fragment keys, queries;
        load_fragment(keys, shared.in.k, first, channel);
        load_fragment(queries, shared.in.q, first, channel);
        RunDecays decays(ahead);
        if (channel + CHANNELS < KEY_SIZE) log_decays.load(ahead, channel + CHANNELS);
#pragma unroll
        for (int i = 0; i < 4 * TILES; ++i) {
            keys[i / 4][i % 4] *= k_unit[i % 4 / 2];
            queries[i / 4][i % 4] *= q_unit[i % 4 / 2];
        }
        products.add(keys, queries, decays);
        __syncwarp();
        store_product(shared.after.k, first, channel, keys, decays.after);
        store_product(shared.after.q, first, channel, queries, decays.after);
        store_product(shared.k_before, first, channel, keys, decays.before);
        if (lane_row() == 7) {
#pragma unroll
            for (int n = 0; n < TILES; ++n)
                *reinterpret_cast<float2*>(shared.decay[warp] + channel + n * 8 + lane_column()) =
                    make_float2(decays.after[n][2], decays.after[n][3]);
        }
    }
}

// Keys, or queries, of block `row` with keys of an earlier one. BETWEEN: blocks between them.
template <int BETWEEN>
__device__ __forceinline__ void multiply_blocks(float (&sums)[2][4], const Shared& shared, bool of_queries, int row) {
    const Inner* rows = of_queries ? shared.after.q : shared.after.k;
    const int lane = threadIdx.x % 32, column = row - BETWEEN - 1;
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i / 4][i % 4] = 0.0f;
#pragma unroll 2
    for (int channel = 0; channel < KEY_SIZE; channel += CHANNELS) {
        const auto a = InnerProduct::template load_a<InnerTile>(rows, row * BLOCK, channel, lane);
        typename InnerProduct::A b;
        if constexpr (BETWEEN == 0) {
            b = InnerProduct::template load_a<InnerTile>(shared.k_before, column * BLOCK, channel, lane);
        } else {
            Fragment keys;
            load_fragment(keys, shared.k_before, column * BLOCK, channel);
#pragma unroll
            for (int n = 0; n < TILES; ++n) {
                float2 decay = make_float2(1.0f, 1.0f);
#pragma unroll
                for (int i = 1; i <= BETWEEN; ++i) {
                    const float2 of_block = *reinterpret_cast<const float2*>(shared.decay[column + i] + channel +
                                                                             n * 8 + lane_column());
                    decay.x *= of_block.x;
                    decay.y *= of_block.y;
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) keys[n][i] *= i % 2 ? decay.y : decay.x;
            }
            b = InnerProduct::a_from_accumulators(keys);
        }
        InnerProduct::multiply(sums[0], a, InnerProduct::b_from_a(b, 0));
        InnerProduct::multiply(sums[1], a, InnerProduct::b_from_a(b, 1));
    }
}
// Those of queries to the scores, those of keys to L.
__device__ __forceinline__ void store_blocks(const float (&sums)[2][4], Shared& shared, Inner* scores, bool of_queries,
                                             int row, int column) {
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = row * BLOCK + lane_row() + half * 8, j = column * BLOCK + n * 8 + lane_column();
            const float factor = row_factor(shared, of_queries, i);
            const float first = factor * shared.k_back[j] * sums[n][2 * half];
            const float second = factor * shared.k_back[j + 1] * sums[n][2 * half + 1];
            if (of_queries)
                *reinterpret_cast<Vector<Inner, 2>*>(scores + Triangle<Inner>::at(i, j)) = {from_float<Inner>(first),
                                                                                            from_float<Inner>(second)};
            else
                *reinterpret_cast<float2*>(shared.square + Square::at(i, j)) = make_float2(first, second);
        }
}

// The six blocks below the diagonal, three a warp: of keys by two warps, of queries by the others.
struct EarlierBlocks {
    float sums[3][2][4];
    bool of_queries;
    int half;

    __device__ __forceinline__ EarlierBlocks() : of_queries(threadIdx.x / 32 % 2), half(threadIdx.x / 64) {}
    __device__ __forceinline__ int row(int i) const { return i == 0 ? 3 : i == 1 ? 2 : 1 + 2 * half; }
    __device__ __forceinline__ int column(int i) const { return i == 0 ? half : i == 1 ? 1 - half : 2 * half; }
    __device__ __forceinline__ void multiply(const Shared& shared) {
        if (half == 0) {
            multiply_blocks<2>(sums[0], shared, of_queries, row(0));
            multiply_blocks<0>(sums[1], shared, of_queries, row(1));
        } else {
            multiply_blocks<1>(sums[0], shared, of_queries, row(0));
            multiply_blocks<1>(sums[1], shared, of_queries, row(1));
        }
        multiply_blocks<0>(sums[2], shared, of_queries, row(2));
    }
    __device__ __forceinline__ void store(Shared& shared, Inner* scores) const {
#pragma unroll
        for (int i = 0; i < 3; ++i) store_blocks(sums[i], shared, scores, of_queries, row(i), column(i));
    }
};

// Decays up to and behind each block, and over the chunk.
__device__ __forceinline__ void join_decays(Prepared& chunk, Shared& shared) {
    for (int c = threadIdx.x; c < KEY_SIZE; c += THREADS) {
        float earlier = 1.0f, later = 1.0f;
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            shared.from_start[block][c] = earlier;
            shared.to_end[BLOCKS - 1 - block][c] = later;
            earlier *= shared.decay[block][c];
            later *= shared.decay[BLOCKS - 1 - block][c];
        }
        chunk.total[c] = earlier;
    }
}

// Where a unit lies in the tiles that the second kernel reads.
__device__ __forceinline__ int place_left(int row, int unit) {
    return PANELS ? panel_unit<CHUNK>(row, unit) / int(sizeof(Inner)) : InnerTile::unit(row, unit);
}

// to = a tile of shared memory, whose rows have the decays of their block, times `decays` of the blocks; those of block
// WHOLE are 1.
template <int WHOLE>
__device__ __forceinline__ void store_tile(Inner* to, const Inner* tile, const float (&decays)[BLOCKS][KEY_SIZE]) {
    constexpr int UNIT = InnerTile::UNIT, UNITS = KEY_SIZE / UNIT;
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
        for (int i = threadIdx.x; i < BLOCK * UNITS; i += THREADS) {
            const int row = block * BLOCK + i / UNITS, unit = i % UNITS;
            Vector<Inner, UNIT> values =
                *reinterpret_cast<const Vector<Inner, UNIT>*>(tile + InnerTile::unit(row, unit));
            const float4* factors = reinterpret_cast<const float4*>(decays[block] + unit * UNIT);
#pragma unroll
            for (int e = 0; block != WHOLE && e < UNIT; e += 4) {
                const float4 four = factors[e / 4];
                const float of_element[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    values.data[e + i] = from_float<Inner>(to_float(values.data[e + i]) * of_element[i]);
            }
            *reinterpret_cast<Vector<Inner, UNIT>*>(to + place_left(row, unit)) = values;
        }
}

__device__ __forceinline__ void store_factors(PreparedChunk<Inner>& chunk, const Shared& shared) {
    if (threadIdx.x >= CHUNK) return;
    const int j = threadIdx.x;
    chunk.read[j] = shared.k_back[j] * (1.0f / INNER_SHARE);
    chunk.beta[j] = shared.beta[j] * INNER_SHARE;
    chunk.from_start[j] = shared.q_back[j] * (1.0f / INNER_SHARE);
    chunk.write[j] = shared.k_back[j];
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
gated_delta_rule_prepare_channels(const __grid_constant__ GatedDeltaPrefill params) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    wait_for_earlier_kernels();
    const RowView view = row_view(params.rows, blockIdx.z);
    const int head = blockIdx.y, key_head = head / params.values_per_key;
    const int valid = min(CHUNK, view.length - int(blockIdx.x) * CHUNK);
    if (view.slot < 0 || valid <= 0) return;

    const int64_t row = view.row, token = view.first_token + int64_t(blockIdx.x) * CHUNK;
    const DATA_T* k = static_cast<const DATA_T*>(params.k) + row * params.k_row + token * params.k_token +
                      key_head * params.k_head;
    const DATA_T* q = static_cast<const DATA_T*>(params.q) + row * params.q_row + token * params.q_token +
                      key_head * params.q_head;
    load_tokens<DATA_T, KEY_SIZE, THREADS, ALIGNED>(shared.in.k, k, params.k_token, valid, threadIdx.x);
    load_tokens<DATA_T, KEY_SIZE, THREADS, ALIGNED>(shared.in.q, q, params.q_token, valid, threadIdx.x);
    commit_copies();
    const float* g = params.g + row * params.g_row + token * params.g_token + int64_t(head) * KEY_SIZE;
    if (threadIdx.x < CHUNK) {
        const DATA_T* beta = static_cast<const DATA_T*>(params.beta) + row * params.beta_row +
                             token * params.beta_token + head;
        shared.beta[threadIdx.x] = int(threadIdx.x) < valid ? to_float(beta[threadIdx.x * params.beta_token]) : 0.0f;
    }
    Prepared* chunks = static_cast<Prepared*>(params.chunks);
    Prepared& chunk = chunks[(first_chunk_slot(params, view, blockIdx.z) + blockIdx.x) * params.value_heads + head];
    wait_copies<0>();
    __syncthreads();
    measure_tokens(shared, params.scale);
    __syncwarp();
    BlockProducts products;
    multiply_block(products, shared, LogDecays(g, params.g_token, valid));
    store_own_scores(shared, chunk.chunk.scores, products);
    __syncthreads();
    join_decays(chunk, shared);
    EarlierBlocks earlier;
    earlier.multiply(shared);
    __syncthreads();
    store_tile<0>(chunk.k_read, shared.after.k, shared.from_start);
    store_tile<0>(chunk.q_read, shared.after.q, shared.from_start);
    store_tile<BLOCKS - 1>(chunk.k_write, shared.k_before, shared.to_end);
    store_factors(chunk.chunk, shared);
    __syncthreads();
    store_own_triangle(shared, products);
    earlier.store(shared, chunk.chunk.scores);
    invert_triangle(shared.square);
    store_inverse<Inner, THREADS>(chunk.chunk.inverse, shared.square);
    // Not before: blocks of the next kernel would lie on few multiprocessors, those that have room while this one runs.
    let_later_kernels_start();
}
