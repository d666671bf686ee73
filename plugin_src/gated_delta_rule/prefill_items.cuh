// The items of a block of prefill_prepare.cu or prefill_prepare_pairs.cu, and the loads ahead of their inputs.
//
// Macros: DATA_T.
#pragma once

#include "common/launch.cuh"
#include "common/math.cuh"
#include "gated_delta_rule/prefill_params.cuh"

namespace {

constexpr int WARPS = CHUNK / BLOCK;
constexpr int THREADS = 32 * WARPS;
constexpr float LOG2_E = 1.44269504088896340736f;
// Decays below are zero in float; sums of larger logarithms would cost the small ones their last bits.
constexpr float LEAST_LOG_DECAY = -256.0f;

// Of one value head. log_decay[j] is the base-2 logarithm of the decay over tokens 0..j, rest[j] what its float left
// out.
struct HeadTokens {
    float log_decay[CHUNK];
    float rest[CHUNK];
    float beta[CHUNK];
};

// Two tokens of one value head as they lie in memory, a lane of a whole warp.
struct HeadInputs {
    float g[2];
    DATA_T beta[2];

    __device__ __forceinline__ void load(const float* from, int64_t g_token, const DATA_T* strength,
                                         int64_t beta_token, int valid) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int j = threadIdx.x % 32 * 2 + i;
            g[i] = j < valid ? from[j * g_token] : 0.0f;
            beta[i] = j < valid ? strength[j * beta_token] : from_float<DATA_T>(0.0f);
        }
    }
    __device__ __forceinline__ void add_up(HeadTokens& to) const {
        const int lane = threadIdx.x % 32;
        double logs[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            logs[i] = double(g[i] < LEAST_LOG_DECAY ? LEAST_LOG_DECAY : g[i]) * LOG2_E;
            to.beta[2 * lane + i] = to_float(beta[i]);
        }
        double sum = logs[0] + logs[1];
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const double before = __shfl_up_sync(~0u, sum, distance);
            sum += lane >= distance ? before : 0.0;
        }
        const double sums[2] = {sum - logs[1], sum};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float rounded = float(sums[i]);
            to.log_decay[2 * lane + i] = rounded;
            to.rest[2 * lane + i] = float(sums[i] - rounded);
        }
    }
};

// A chunk of one key head. valid: its tokens; 0 where there is nothing left to do.
struct Item {
    int64_t row = 0, token = 0;  // factor of the row stride; of the token stride for the chunk's first
    int slot = 0, key_head = 0, valid = 0;

    // Its first token in q or k, which has these strides.
    __device__ __forceinline__ const DATA_T* first_of(const void* tensor, int64_t of_row, int64_t of_token,
                                                      int64_t of_head) const {
        return static_cast<const DATA_T*>(tensor) + row * of_row + token * of_token + key_head * of_head;
    }
    // Value head `index` of the key head; nothing where it has none.
    __device__ __forceinline__ void load_head(HeadInputs& to, const GatedDeltaPrefill& p, int index) const {
        if (index >= p.values_per_key) return;
        const int head = key_head * p.values_per_key + index;
        to.load(p.g + row * p.g_row + token * p.g_token + head, p.g_token,
                static_cast<const DATA_T*>(p.beta) + row * p.beta_row + token * p.beta_token + head, p.beta_token,
                valid);
    }
};

// The items of a block, in the order in which the second kernel reads them: of the rows that it has at once all first
// chunks, then all second ones. In reverse where it runs later: what it reads first was used last, and is still in the
// L2.
struct Items {
    int count, chunks, place;

    __device__ __forceinline__ void begin(const GatedDeltaPrefill& p) {
        int longest = 0;
        for (int row = threadIdx.x % 32; row < p.rows.rows; row += 32)
            longest = max(longest, row_view(p.rows, row).length);
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
            longest = max(longest, __shfl_xor_sync(~0u, longest, distance));
        chunks = (longest + CHUNK - 1) / CHUNK;
        count = chunks * p.rows.rows * p.key_heads;
        place = blockIdx.x;
    }
    __device__ __forceinline__ Item next(const GatedDeltaPrefill& p) {
        Item item;
        for (; item.valid <= 0 && place < count; place += gridDim.x) {
            const int at = p.together ? place : count - 1 - place, of_rows = chunks * p.rows_at_once * p.key_heads;
            const int first_row = at / of_rows * p.rows_at_once;
            const int width = min(p.rows_at_once, p.rows.rows - first_row) * p.key_heads;
            const int chunk = at % of_rows / width, row = first_row + at % of_rows % width / p.key_heads;
            const RowView view = row_view(p.rows, row);
            if (view.slot < 0) continue;
            item.row = view.row;
            item.token = view.first_token + int64_t(chunk) * CHUNK;
            item.slot = int(first_chunk_slot(p, view, row)) + chunk;
            item.key_head = at % p.key_heads;
            item.valid = min(CHUNK, view.length - chunk * CHUNK);
        }
        return item;
    }
};

// The block's next item to shared.item[to], by its first warp.
template <typename SHARED>
__device__ __forceinline__ void find_next(SHARED& shared, const GatedDeltaPrefill& p, int to) {
    Items items = shared.items;
    const Item found = items.next(p);
    __syncwarp();
    if (threadIdx.x == 0) {
        shared.items = items;
        shared.item[to] = found;
    }
    __syncwarp();
}

// Prepares the block's items one after another. A file that includes this defines, for its SHARED: load_tiles(shared,
// item, p) to start copying an item's tiles; wait_for_tiles(shared); and prepare(shared, p, inputs, item, later), which
// starts to copy those of `later`. HEADS: value heads whose inputs are loaded ahead, each by a warp.
template <int HEADS, typename SHARED>
__device__ __forceinline__ void prepare_items(SHARED& shared, const GatedDeltaPrefill& p) {
    wait_for_earlier_kernels();
    if (p.together) let_later_kernels_start();
    if (threadIdx.x < 32) {
        Items items;
        items.begin(p);
        shared.items = items;
        __syncwarp();
        find_next(shared, p, 0);
    }
    __syncthreads();
    HeadInputs inputs = {};
    load_tiles(shared, shared.item[0], p);
    if (HEADS == WARPS || threadIdx.x < 32 * HEADS) shared.item[0].load_head(inputs, p, threadIdx.x / 32);
    for (int at = 0; shared.item[at].valid > 0; at ^= 1) {
        if (threadIdx.x < 32) find_next(shared, p, at ^ 1);
        wait_for_tiles(shared);
        // Blocks of a second kernel that waits for chunks have a multiprocessor each, and take those where this one has
        // ended.
        if (p.waiting && !p.together && shared.item[at ^ 1].valid <= 0) let_later_kernels_start();
        prepare(shared, p, inputs, shared.item[at], shared.item[at ^ 1]);
    }
    // Not before: blocks of the next kernel would lie on few multiprocessors, those that have room while this one runs.
    if (!p.together) let_later_kernels_start();
}

}  // namespace
