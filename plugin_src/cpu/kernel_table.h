// The kernels of the operators, by instruction set.
#pragma once

#include "attention.h"
#include "conv.h"
#include "delta_rule.h"
#include "experts.h"
#include "gated_norm.h"
#include "linear.h"
#include "memory.h"
#include "paged_attention.h"
#include "ssm.h"
#include "state_8bit.h"
#include "token_attention.h"

namespace cpu {

// The kernels of one instruction set. Rows of x and y follow each other without gaps.
struct Kernels {
    // Number of inputs from which `panels` are faster than `dots`.
    int64_t panel_inputs;
    // Rows of the weight that `panels` computes at once.
    int64_t panel_rows;
    // Round x [columns], which is input m of `out`.
    void (*round)(const Weight&, const float* x, int64_t m, const Rounded& out);
    // y[:, first:last] of a weight of integers with rounded inputs; first is the beginning of a tile.
    void (*rounded)(const Weight&, const Rounded& x, float* y, int64_t first, int64_t last);
    // Floats x [columns] in the order in which `dots` reads them: [pad(columns, dot_columns)].
    void (*arrange)(const Weight&, const float* x, float* out);
    // y[:, first:last] of a weight of floats with a few arranged inputs.
    void (*dots)(const Weight&, const float* x, int64_t count, float* y, int64_t first, int64_t last);
    // Input m of `count`, x [columns], as `panels` reads them: parts of at most panel_columns columns, in each of them
    // the inputs, packed_stride apart.
    void (*pack)(const float* x, int64_t columns, int64_t m, int64_t count, float* out);
    // y[:, first:last] of any weight with any number of packed inputs; first is a multiple of tile_rows.
    void (*panels)(const Weight&, const float* x, int64_t count, float* y, int64_t first, int64_t last);
    // Heads first to last of an update, counted over all its rows.
    void (*update_ssm)(const SsmUpdate&, int64_t first, int64_t last);
    void (*update_ssm_8bit)(const SsmUpdate&, const SsmState8&, int64_t first, int64_t last);
    // Value heads first to last of a gated delta rule, counted over all its rows.
    void (*delta_rule)(const DeltaRule&, int64_t first, int64_t last);
    // Activated numbers g [count], times v [count] if that is not null.
    void (*activate)(const Activate&, const float* g, const float* v, int64_t count, float* out);
    // At most conv_channels channels of one row, from `first` on.
    void (*convolve)(const Convolution&, int64_t row, int64_t first);
    // Groups first to last, counted over all tokens.
    void (*gated_norm)(const GatedNorm&, int64_t first, int64_t last);
    // The RMS norm of x [count].
    void (*rms_norm)(const float* x, const float* weight, int64_t count, float epsilon, float* out);
    // Tasks first to last of an attention layer, in its two passes.
    void (*store_keys)(const Attention&, int64_t first, int64_t last);
    void (*attend)(const Attention&, int64_t task, uint8_t* memory);
    // Queries of a strip of attention over blocks, and one strip of key head kv_head, from query `first` on; false
    // without memory.
    int64_t strip_queries;
    bool (*attend_blocks)(const PagedAttention&, int64_t kv_head, int64_t first, Memory&);
    // Task row * kv_heads + kv_head of an attention layer with one token for each row; `memory` has its task_bytes.
    void (*attend_token)(const TokenAttention&, int64_t task, float* memory);
    // Matrices first to last of a state of 8 bits: to floats, and back with new scales.
    void (*widen_states)(const State8&, int64_t first, int64_t last);
    void (*round_states)(const State8&, int64_t first, int64_t last);
};

// By instruction set; null where this processor, or this build, lacks it.
const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* neon_kernels();

enum Choice : int64_t { best = 0, portable = 1, avx2 = 2, avx512 = 3, neon = 4 };
const Kernels* chosen_kernels(int64_t choice);

}  // namespace cpu
