// The kernels of one instruction set `Isa`.
#pragma once

#include "attention_heads.h"
#include "conv_channels.h"
#include "delta_rule_heads.h"
#include "expert_activation.h"
#include "float_panels.h"
#include "float_rows.h"
#include "gated_norm_groups.h"
#include "kernel_table.h"
#include "paged_attention_strips.h"
#include "rms_norm.h"
#include "rounded_tiles.h"
#include "ssm_update.h"
#include "state_8bit_matrices.h"
#include "token_attention_heads.h"

namespace cpu {
namespace {

template <class Isa>
constexpr Kernels kernels_of(int64_t panel_inputs) {
    return {panel_inputs,     panel_rows<Isa>, round_row<Isa>,  rounded<Isa>,    arrange<Isa>,      dots<Isa>,
            pack,             panels<Isa>,     ssm_heads<Isa>,  ssm_heads_8bit<Isa>, delta_heads<Isa>, activate<Isa>,
            convolve<Isa>,    gated_norm<Isa>, rms_norm<Isa>,   store_keys<Isa>, attend<Isa>,       strip_queries<Isa>,
            attend_blocks<Isa>, attend_token<Isa>, widen_states<Isa>, round_states<Isa>};
}

}  // namespace
}  // namespace cpu
