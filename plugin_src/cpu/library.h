// The operators of the domain hybridge.cpu.
#pragma once

#include "ort_api.h"

namespace cpu {

const ort::CustomOp& linear_op();
const ort::CustomOp& fused_linear_op();
const ort::CustomOp& attention_op();
const ort::CustomOp& experts_op();
const ort::CustomOp& ssm_op();
const ort::CustomOp& ssm_8bit_op();
const ort::CustomOp& delta_rule_op();
const ort::CustomOp& conv_op();
const ort::CustomOp& gated_norm_op();
const ort::CustomOp& paged_attention_op();
const ort::CustomOp& token_attention_op();
const ort::CustomOp& widen_state_op();
const ort::CustomOp& round_state_op();

}  // namespace cpu
