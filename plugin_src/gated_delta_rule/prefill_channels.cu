// First kernel of chunked prefill with one decay per key channel: products of a chunk's tokens with each other, for all
// chunks at once.
//
// With e_t the decays of token t and D(j, i) = e_{j+1} ... e_i (a product for each channel), for tokens j before i:
//   L_ij = beta_i sum_d k'_i D(j, i) k'_j,   inverse = (I + L)^-1,
//   scores_ij = sum_d q'_i D(j, i) k'_j (j = i included).
// D(j, i) has no factors for i and j that both are at most 1, unless it is taken from a token between them. Tokens are
// therefore halved again and again: in the run of 2h tokens whose halves have one of i and j each, D(j, i) is the
// product of the decays from the run's middle up to i (`after`) and of those behind j up to the middle (`before`). Each
// of the six halvings is a product of tensor cores of keys, and of queries, with keys, all times their own factors.
// All factors are products of decays, so that nothing cancels and nothing overflows, however strong decays are.
//
// Macros: DATA_T; KEY_SIZE; NORMED; ALIGNED. Grid: x covers the chunks of a row, y the value heads, z the rows.
#include "common/launch.cuh"
#include "gated_delta_rule/prefill_channel_decays.cuh"
#include "gated_delta_rule/prefill_tiles.cuh"

namespace {

constexpr int BLOCKS = CHUNK / BLOCK;
#if __CUDA_ARCH__ >= 1000  // whose compiler needs a few more registers
constexpr int BLOCKS_AT_ONCE = 1;
#else
constexpr int BLOCKS_AT_ONCE = PASSES == 1 && sizeof(DATA_T) == 2 ? 2 : 1;
#endif
constexpr float NORM_EPSILON = 1e-6f;

using InnerProduct = Mma<Inner>;

// Lengths of k and q, and scores of tokens with themselves, by warps of eight tokens.
__device__ __forceinline__ void measure_tokens(Shared& shared, float scale) {
    const int lane = threadIdx.x % 32;
    constexpr int TOKENS = CHUNK / WARPS;
    for (int t = threadIdx.x / 32 * TOKENS; t < (threadIdx.x / 32 + 1) * TOKENS; ++t) {
        float sums[3] = {};
        for (int c = lane; c < KEY_SIZE; c += 32) {
            const float k = to_float(shared.k[Tile::at(t, c)]), q = to_float(shared.q[Tile::at(t, c)]);
            sums[0] = fmaf(k, k, sums[0]);
            sums[1] = fmaf(q, q, sums[1]);
            sums[2] = fmaf(q, k, sums[2]);
        }
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
#pragma unroll
            for (int i = 0; i < 3; ++i) sums[i] += __shfl_xor_sync(~0u, sums[i], distance);
        if (lane > 0) continue;
        const float k_unit = rsqrtf(sums[0] + NORM_EPSILON), q_unit = rsqrtf(sums[1] + NORM_EPSILON);
        shared.k_unit[t] = k_unit;
        shared.q_unit[t] = q_unit;
        shared.k_back[t] = NORMED ? 1.0f : 1.0f / k_unit;
        shared.q_back[t] = NORMED ? scale : scale / q_unit;
        shared.own_score[t] = sums[2] * k_unit * q_unit;
    }
}

// What a warp multiplies: rows of keys (warps 0 to 3, for L) or of queries (4 to 7, for scores) with columns of keys.
struct Pairs {
    int lane, part;
    bool queries;

    __device__ __forceinline__ Pairs()
        : lane(threadIdx.x % 32), part(threadIdx.x / 32 % BLOCKS), queries(threadIdx.x >= THREADS / 2) {}

    // sums = rows `row` to `row` + 15 times columns `column` on.
    __device__ __forceinline__ void multiply(float (&sums)[2][4], const Shared& shared, int row, int column) const {
        const Inner* rows = queries ? shared.scaled_q : shared.scaled_k;
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i / 4][i % 4] = 0.0f;
#pragma unroll 4
        for (int k = 0; k < KEY_SIZE; k += InnerProduct::K) {
            const auto a = InnerProduct::template load_a<InnerTile>(rows, row, k, lane);
            typename InnerProduct::B b[2];
            InnerProduct::template load_b<InnerTile>(b, shared.scaled_k, column, k, lane);
            InnerProduct::multiply(sums[0], a, b[0]);
            InnerProduct::multiply(sums[1], a, b[1]);
        }
    }
    // Keeps those elements of a block on the diagonal whose tokens are in two neighbouring runs of STEP tokens.
    template <int STEP>
    __device__ __forceinline__ void multiply_diagonal(float (&kept)[2][4], const Shared& shared) const {
        float sums[2][4];
        multiply(sums, shared, part * BLOCK, part * BLOCK);
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int i = row_of(e), j = column_of(n, e), parting = i ^ j;
                if (i > j && parting >= STEP && parting < 2 * STEP) kept[n][e] = sums[n][e];
            }
    }
    // A block below the diagonal: of L to shared memory, of scores to the chunk.
    __device__ __forceinline__ void store(Shared& shared, Inner* scores, const float (&sums)[2][4],
                                          int row, int column) const {
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int i = row + row_of(2 * half), j = column + column_of(n, 0);
                const float factor = row_factor(shared, i);
                const float first = factor * shared.k_back[j] * sums[n][2 * half];
                const float second = factor * shared.k_back[j + 1] * sums[n][2 * half + 1];
                if (queries)
                    *reinterpret_cast<Vector<Inner, 2>*>(scores + Triangle<Inner>::at(i, j)) = {
                        from_float<Inner>(first), from_float<Inner>(second)};
                else
                    *reinterpret_cast<float2*>(shared.square + Square::at(i, j)) = make_float2(first, second);
            }
    }
    // One on the diagonal, which L has transposed.
    __device__ __forceinline__ void store_diagonal(Shared& shared, Inner* scores, const float (&kept)[2][4]) const {
        const int first = part * BLOCK;
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int row = row_of(e), i = first + row, j = first + column_of(n, e);
                float value = i == j ? shared.own_score[i] : kept[n][e];
                value = j > i ? 0.0f : row_factor(shared, i) * shared.k_back[j] * value;
                if (queries)
                    scores[Triangle<Inner>::at(i, j)] = from_float<Inner>(value);
                else
                    shared.square[Square::at(j, first + row)] = value;
            }
    }
    __device__ __forceinline__ float row_factor(const Shared& shared, int i) const {
        return queries ? shared.q_back[i] * (1.0f / INNER_SHARE) : shared.beta[i] * shared.k_back[i];
    }
    __device__ __forceinline__ int row_of(int e) const { return lane / 4 + e / 2 * 8; }
    __device__ __forceinline__ int column_of(int n, int e) const { return n * 8 + lane % 4 * 2 + e % 2; }
};

template <int STEP>
__device__ __forceinline__ void halve(Channels& channels, Shared& shared, const Pairs& pairs, Inner* scores,
                                      float (&kept)[2][4]) {
    channels.scale<STEP>(shared);
    __syncthreads();
    if constexpr (STEP < BLOCK) {
        pairs.multiply_diagonal<STEP>(kept, shared);
    } else {
        // Of two blocks each: below one another where two runs of one block meet, else side by side.
        const int row = STEP == BLOCK ? (pairs.part * 2 + 1) * BLOCK : HALF + pairs.part / 2 * BLOCK;
        const int column = STEP == BLOCK ? pairs.part * 2 * BLOCK : pairs.part % 2 * BLOCK;
        if (STEP > BLOCK || pairs.part < 2) {
            float sums[2][4];
            pairs.multiply(sums, shared, row, column);
            pairs.store(shared, scores, sums, row, column);
        }
    }
    if constexpr (STEP < HALF) channels.widen<STEP>();
    __syncthreads();
}

__device__ __forceinline__ void copy_tile(Inner* to, const Inner* from) {
    constexpr int UNIT = 16 / sizeof(Inner);
    for (int i = threadIdx.x * UNIT; i < TILE_ELEMENTS; i += THREADS * UNIT)
        *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
}

// The tiles that the second kernel reads, and the decays over the chunk. Ends with a barrier.
__device__ __forceinline__ void store_tiles(Prepared& chunk, Shared& shared, const Channels& channels) {
    channels.share_half_decays(shared);
    __syncthreads();
    channels.scale_from_start(shared);
    __syncthreads();
    copy_tile(chunk.k_read, shared.scaled_k);
    copy_tile(chunk.q_read, shared.scaled_q);
    for (int c = threadIdx.x; c < KEY_SIZE; c += THREADS)
        chunk.total[c] = shared.half_decay[0][c] * shared.half_decay[1][c];
    __syncthreads();
    channels.scale_to_end(shared);
    __syncthreads();
    copy_tile(chunk.k_write, shared.scaled_k);
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
    load_tokens<DATA_T, KEY_SIZE, THREADS, ALIGNED>(shared.k, k, params.k_token, valid, threadIdx.x);
    load_tokens<DATA_T, KEY_SIZE, THREADS, ALIGNED>(shared.q, q, params.q_token, valid, threadIdx.x);
    commit_copies();
    Channels channels;
    channels.load(params.g + row * params.g_row + token * params.g_token + int64_t(head) * KEY_SIZE,
                  params.g_token, valid);
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
    __syncthreads();

    const Pairs pairs;
    float kept[2][4] = {};
    halve<1>(channels, shared, pairs, chunk.chunk.scores, kept);
    halve<2>(channels, shared, pairs, chunk.chunk.scores, kept);
    halve<4>(channels, shared, pairs, chunk.chunk.scores, kept);
    halve<8>(channels, shared, pairs, chunk.chunk.scores, kept);
    pairs.store_diagonal(shared, chunk.chunk.scores, kept);
    halve<16>(channels, shared, pairs, chunk.chunk.scores, kept);
    halve<32>(channels, shared, pairs, chunk.chunk.scores, kept);
    store_tiles(chunk, shared, channels);
    store_factors(chunk.chunk, shared);
    invert_triangle(shared.square);
    store_inverse<Inner, THREADS>(chunk.chunk.inverse, shared.square);
    // Not before: blocks of the next kernel would lie on few multiprocessors, those that have room while this one runs.
    let_later_kernels_start();
}
