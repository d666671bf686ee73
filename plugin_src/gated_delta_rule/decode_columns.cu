// One token per row and a state of 16 bits: a block owns all rows of a slice of columns of one head's state, a warp 32
// rows.
//
// As in decode_slices.cu, u = beta (v - d k' S), o = d q' S + (q' k') u and S_new = d S + k' u need k S and q S of the
// state before the update. Both are one product of tensor cores, of the state's transpose with the columns k and q; its
// operands are used as they come and its sums are floats. A second one has |k|^2, q k and |q|^2.
//
// Macros: DATA_T (of the state too); KEY_SIZE (a multiple of 32); VALUE_SIZE (64, or a multiple of 128); NORMED; BLOCKS
// (of a multiprocessor; limits the registers). Grid: x covers the value heads of a key head and their SLICES, y
// the key heads, z the rows. A lane reads what it writes and nothing else of the state, so that it may be updated in
// place. Rows of q and k start at multiples of 16 bytes.
#include "common/access.cuh"
#include "common/launch.cuh"
#include "common/mma.cuh"
#include "gated_delta_rule/decode_params.cuh"

namespace {

constexpr float NORM_EPSILON = 1e-6f;
constexpr int RUN = 8;        // neighbouring rows of a lane, and neighbouring columns of one access
constexpr int WARPS = KEY_SIZE / (4 * RUN), THREADS = 32 * WARPS;
constexpr int PARTS = CHANNEL_DECAY ? 2 : 1;  // of a number, whose sum it is
constexpr int SLICE = 8 * RUN * ACCESSES, SLICES = VALUE_SIZE / SLICE;
constexpr int FINISHED = (SLICE + THREADS - 1) / THREADS;  // columns of a thread
static_assert(KEY_SIZE % (4 * RUN) == 0 && VALUE_SIZE % SLICE == 0, "warps and blocks are full");

using Product = Mma<DATA_T>;
using Run = Access<DATA_T, RUN>;

// What a block adds up: [0] is k @ state, [1] is q @ state, per warp; and the warp's part of |k|^2, |q|^2 and q @ k.
struct BlockSums {
    alignas(16) float columns[WARPS][2][SLICE];
    alignas(16) float products[WARPS][4];
    alignas(16) float written[SLICE];  // beta times the difference, over |k|
};

// Two elements of one column from two rows of pairs of columns.
__device__ __forceinline__ unsigned low_halves(unsigned row, unsigned next) { return __byte_perm(row, next, 0x5410); }
__device__ __forceinline__ unsigned high_halves(unsigned row, unsigned next) { return __byte_perm(row, next, 0x7632); }
__device__ __forceinline__ unsigned word_of(const Run& run, int i) {
    return reinterpret_cast<const unsigned*>(&run.word)[i];
}

// Decays of a lane's rows, or the head's.
struct Decays {
    float values[CHANNEL_DECAY ? RUN : 1];

    // g: logarithms, from the lane's first row on.
    __device__ __forceinline__ explicit Decays(const float* g) {
#pragma unroll
        for (int i = 0; i < (CHANNEL_DECAY ? RUN : 1); ++i) values[i] = expf(g[i]);
    }
    __device__ __forceinline__ float of_row(int i) const { return values[CHANNEL_DECAY ? i : 0]; }
    // The factor of sums over rows, which already have the decays of rows.
    __device__ __forceinline__ float of_sums() const { return CHANNEL_DECAY ? 1.0f : values[0]; }
    // k or q as the first product takes it.
    __device__ __forceinline__ void apply(Run (&parts)[PARTS], const Run& k_q) const {
        parts[0] = k_q;
        if constexpr (CHANNEL_DECAY) {
            float whole[RUN], high[RUN];
            k_q.unpack(whole);
#pragma unroll
            for (int i = 0; i < RUN; ++i) whole[i] *= values[i];
            parts[0].pack(whole);
            parts[0].unpack(high);
#pragma unroll
            for (int i = 0; i < RUN; ++i) whole[i] -= high[i];
            parts[1].pack(whole);
        }
    }
};

// Lane 4g + t has rows 8t .. 8t + 7 of its warp's 32 in columns 64a + 8g .. 64a + 8g + 7.
struct Rows8 {
    Run rows[RUN][ACCESSES];

    // state: at the lane's first row and column.
    __device__ __forceinline__ void load(const DATA_T* state) {
#pragma unroll
        for (int i = 0; i < RUN; ++i)
#pragma unroll
            for (int a = 0; a < ACCESSES; ++a) rows[i][a].load_streamed(state + i * VALUE_SIZE + a * 64);
    }
    __device__ __forceinline__ void store(DATA_T* state) const {
#pragma unroll
        for (int i = 0; i < RUN; ++i)
#pragma unroll
            for (int a = 0; a < ACCESSES; ++a) rows[i][a].store_streamed(state + i * VALUE_SIZE + a * 64);
    }
    // k @ state and q @ state over the warp's rows. k_q: parts of k in lanes with g = 0, of q with g = 1, of others
    // zeros.
    __device__ __forceinline__ void multiply(float (&columns)[2][SLICE], const Run (&k_q)[PARTS]) const {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a) {
            float sums[RUN / 2][4] = {};
#pragma unroll
            for (int pair = 0; pair < RUN / 2; ++pair)
#pragma unroll
                for (int i = 0; i < RUN; i += 4) {
                    const unsigned row = word_of(rows[i][a], pair), next = word_of(rows[i + 1][a], pair);
                    const unsigned third = word_of(rows[i + 2][a], pair), last = word_of(rows[i + 3][a], pair);
#pragma unroll
                    for (int part = 0; part < PARTS; ++part)
                        Product::multiply(sums[pair], {{low_halves(row, next), high_halves(row, next),
                                                        low_halves(third, last), high_halves(third, last)}},
                                          {{word_of(k_q[part], i / 2), word_of(k_q[part], i / 2 + 1)}});
                }
            if (t != 0) continue;  // their columns of the product are zero
#pragma unroll
            for (int kind = 0; kind < 2; ++kind)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    *reinterpret_cast<float4*>(columns[kind] + a * 64 + g * RUN + half * 4) =
                        make_float4(sums[2 * half][kind], sums[2 * half][2 + kind],
                                    sums[2 * half + 1][kind], sums[2 * half + 1][2 + kind]);
        }
    }
    // Row r becomes its decay times itself, plus k[r] * written, and is stored at `state`.
    __device__ __forceinline__ void update(DATA_T* state, const Decays& decays, const Run& k_q, const float* written) {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        Run k;
        k.word = make_uint4(__shfl_sync(~0u, k_q.word.x, t), __shfl_sync(~0u, k_q.word.y, t),
                            __shfl_sync(~0u, k_q.word.z, t), __shfl_sync(~0u, k_q.word.w, t));
        float keys[RUN];
        k.unpack(keys);
#pragma unroll
        for (int a = 0; a < ACCESSES; ++a) {
            float u[RUN];
#pragma unroll
            for (int e = 0; e < RUN; e += 4)
                *reinterpret_cast<float4*>(u + e) = *reinterpret_cast<const float4*>(written + a * 64 + g * RUN + e);
#pragma unroll
            for (int i = 0; i < RUN; ++i) {
                float values[RUN];
                rows[i][a].unpack(values);
#pragma unroll
                for (int e = 0; e < RUN; ++e) values[e] = fmaf(keys[i], u[e], decays.of_row(i) * values[e]);
                rows[i][a].pack(values);
                rows[i][a].store_streamed(state + i * VALUE_SIZE + a * 64);
            }
        }
    }
};

// The warp's part of |k|^2, |q|^2 and q @ k.
__device__ __forceinline__ void share_products(float (&products)[4], const Run& k_q) {
    const uint4 words = k_q.word;
    float sums[4] = {};
    Product::multiply(sums, {{words.x, 0, words.y, 0}}, {{words.x, words.y}});
    Product::multiply(sums, {{words.z, 0, words.w, 0}}, {{words.z, words.w}});
    const int lane = threadIdx.x % 32;
    if (lane == 0) {
        products[0] = sums[0];
        products[2] = sums[1];
    }
    if (lane == 4) products[1] = sums[1];
}

// The factors of q and k, and q @ k without them.
struct Factors {
    float q = 1.0f, k = 1.0f, q_k = 0.0f;

    __device__ __forceinline__ Factors(const BlockSums& shared, float scale) {
        float k_square = NORM_EPSILON, q_square = NORM_EPSILON;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float4 products = *reinterpret_cast<const float4*>(shared.products[w]);
            k_square += products.x;
            q_square += products.y;
            q_k += products.z;
        }
        if (NORMED) {
            k = rsqrtf(k_square);
            q = rsqrtf(q_square);
        }
        q *= scale;
    }
};

// Brings the state of the block that comes `ahead` blocks after this one to the L2, while this one computes.
__device__ __forceinline__ void prefetch_later_state(const GatedDeltaDecode& params) {
    if (params.ahead == 0) return;
    const unsigned later = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x + params.ahead;
    const unsigned row = later / (gridDim.x * gridDim.y), head = later % (gridDim.x * gridDim.y);
    if (row >= gridDim.z) return;
    const int64_t slot = row_view(params.rows, row).slot;
    if (slot < 0) return;
    prefetch_bulk_to_l2(static_cast<const DATA_T*>(params.state) + slot * params.state_slot +
                        int64_t(head) * KEY_SIZE * VALUE_SIZE,
                        KEY_SIZE * VALUE_SIZE * int(sizeof(DATA_T)));
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
gated_delta_rule_decode(const __grid_constant__ GatedDeltaDecode params) {
    __shared__ BlockSums shared;
    const int head = blockIdx.y * params.values_per_key + blockIdx.x / SLICES;
    wait_for_earlier_kernels();
    // Not before: blocks of the next kernel would take multiprocessors from this one's while those still wait.
    let_later_kernels_start();
    const RowView view = row_view(params.rows, blockIdx.z);
    if (view.slot < 0) return;

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int first_row = (warp * 4 + t) * RUN, slice = blockIdx.x % SLICES * SLICE;
    const int64_t place = (int64_t(head) * KEY_SIZE + first_row) * VALUE_SIZE + slice + g * RUN;
    Rows8 state;
    state.load(static_cast<const DATA_T*>(params.state) + view.slot * params.state_slot + place);
    if (SLICES == 1 && threadIdx.x == 0) prefetch_later_state(params);
    DATA_T* state_out = static_cast<DATA_T*>(params.state_out) + view.slot * params.state_out_slot + place;
    if (view.written == 0) return state.store(state_out);

    // A dense row has a token to read even where its length is 0: these loads need not wait for the length.
    const int64_t token = view.first_token;
    const DATA_T* k = static_cast<const DATA_T*>(params.k) + view.row * params.k_row + token * params.k_token +
                      blockIdx.y * params.k_head;
    const DATA_T* q = static_cast<const DATA_T*>(params.q) + view.row * params.q_row + token * params.q_token +
                      blockIdx.y * params.q_head;
    Run k_q = {};
    if (g < 2) k_q.load((g == 0 ? k : q) + first_row);
    const DATA_T* v = static_cast<const DATA_T*>(params.v) + view.row * params.v_row + token * params.v_token +
                      head * params.v_head + slice;
    DATA_T* o = static_cast<DATA_T*>(params.o) + view.row * params.o_row + token * params.o_token +
                head * params.o_head + slice;
    DATA_T values[FINISHED];
#pragma unroll
    for (int i = 0; i < FINISHED; ++i)
        if (int(threadIdx.x) + i * THREADS < SLICE) values[i] = v[threadIdx.x + i * THREADS];
    const Decays decays(params.g + view.row * params.g_row + token * params.g_token +
                        (CHANNEL_DECAY ? head * KEY_SIZE + first_row : head));
    const DATA_T* betas = static_cast<const DATA_T*>(params.beta) + view.row * params.beta_row;
    const float beta = to_float(betas[token * params.beta_token + head]);

    share_products(shared.products[warp], k_q);
    Run decayed[PARTS];
    decays.apply(decayed, k_q);
    state.multiply(shared.columns[warp], decayed);
    __syncthreads();
    const Factors factors(shared, params.scale);
    const float decay = decays.of_sums();
#pragma unroll
    for (int i = 0; i < FINISHED; ++i) {
        const int c = threadIdx.x + i * THREADS;
        if (c >= SLICE) continue;
        float k_state = 0.0f, q_state = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            k_state += shared.columns[w][0][c];
            q_state += shared.columns[w][1][c];
        }
        const float written = factors.k * beta * (to_float(values[i]) - decay * factors.k * k_state);
        shared.written[c] = written;
        o[c] = from_float<DATA_T>(view.length > 0 ? factors.q * fmaf(factors.q_k, written, decay * q_state) : 0.0f);
    }
    __syncthreads();
    if (view.length > 0)
        state.update(state_out, decays, k_q, shared.written);
    else
        state.store(state_out);
}
