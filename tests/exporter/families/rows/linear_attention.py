"""Families of linear attention: gated delta nets, Kimi Delta Attention, lightning attention."""

from __future__ import annotations

from typing import Any

from tests.exporter.families.rows.parts import EPSILON, HEADS, ROPES, TIED, UNTIED, YARN, together, with_experts
from tests.support.tiny_models import EXPERTS

ZAYA_ROPE = {
    "hybrid": {"rope_type": "default", "rope_theta": 77.0, "partial_rotary_factor": 0.6},
    "hybrid_sliding": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0, "partial_rotary_factor": 0.3},
}
GATED_DELTA_MIXER: list[dict[str, Any]] = [
    {"linear_num_key_heads": 1},
    {"linear_num_key_heads": 6},
    {"linear_num_key_heads": 3, "linear_num_value_heads": 3},
    {"linear_key_head_dim": 7, "linear_value_head_dim": 13},
    {"linear_key_head_dim": 3},
    {"linear_conv_kernel_dim": 2},
    {"linear_conv_kernel_dim": 5},
]
GATED_DELTA: list[dict[str, Any]] = [
    *together(
        GATED_DELTA_MIXER,
        [
            *HEADS,
            {"head_dim": 32},
            {},
            {"attention_bias": True},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 250.0, "partial_rotary_factor": 1.0}},
            {"rope_parameters": {**YARN, "partial_rotary_factor": 0.5}},
        ],
        [TIED, EPSILON],
    ),
    {"layer_types": ["linear_attention"] * 4},
    {"layer_types": ["full_attention"] * 4},
    {"num_hidden_layers": 1, "layer_types": ["linear_attention"]},
    {"num_hidden_layers": 1, "layer_types": ["full_attention"]},
]

QWEN_EXPERTS: list[dict[str, Any]] = [
    {},
    {"num_experts": 1, "num_experts_per_tok": 1},
    {"num_experts": 7, "num_experts_per_tok": 3},
    {"num_experts": 3, "num_experts_per_tok": 3},
    {"num_experts_per_tok": 1},
    {"moe_intermediate_size": 13},
    {"shared_expert_intermediate_size": 9},
    {"layer_types": ["full_attention"] * 4},
]
# Odd everything, as random configs have it: one layer and no attention, most heads of the least kinds, a tied head.
ODD_NET: dict[str, Any] = {
    "vocab_size": 7,
    "hidden_size": 30,
    "tie_word_embeddings": True,
    "num_hidden_layers": 1,
    "layer_types": ["linear_attention"],
    "linear_num_key_heads": 5,
    "linear_num_value_heads": 20,
    "linear_key_head_dim": 17,
    "linear_value_head_dim": 33,
    "linear_conv_kernel_dim": 3,
}
ODD_ATTENTION: dict[str, Any] = {
    **ODD_NET,
    "layer_types": ["full_attention"],
    "num_attention_heads": 15,
    "num_key_value_heads": 3,
    "head_dim": 8,
    "attention_bias": True,
}
ODD_EXPERTS: dict[str, Any] = {
    "num_experts": 9,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 5,
    "shared_expert_intermediate_size": 15,
}

LINEAR_ATTENTION_ROWS: dict[str, list[dict[str, Any]]] = {
    "olmo_hybrid": [
        *together(
            [
                *HEADS,
                {"head_dim": 32},
                {"attention_bias": True},
                *ROPES,
                {"rope_parameters": {"rope_type": "default", "rope_theta": None}},
                {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 12},
            ],
            [*GATED_DELTA_MIXER, {"linear_allow_neg_eigval": False}],
            [TIED, EPSILON],
        ),
        {"layer_types": None},
        {"num_hidden_layers": 2, "layer_types": None},
        {"num_hidden_layers": 5, "layer_types": None},
    ],
    "minimax": [
        *together(
            [
                *HEADS,
                {"head_dim": 10},
                {"head_dim": None},
                {"rope_parameters": {"rope_type": "default", "rope_theta": 250.0}},
                {"num_attention_heads": 5, "num_key_value_heads": 1},
            ],
            [{"num_local_experts": 2}, {"num_experts_per_tok": 5}, {"block_size": 256}, {"intermediate_size": 13}],
            [TIED, EPSILON, {"full_attn_alpha_factor": 3, "full_attn_beta_factor": 0.2, "mlp_alpha_factor": 0.6}],
        ),
        {"layer_types": None},
        {"layer_types": ["full_attention"] * 3},
        {"num_hidden_layers": 1, "layer_types": ["linear_attention"]},
    ],
    "zaya": [
        *together(
            [
                {"cca_time0": 1, "attention_bias": True},
                {"cca_time1": 1, "num_attention_heads": 4},
                {"cca_time0": 1, "cca_time1": 1, "num_key_value_heads": 6},
                {"cca_time0": 3, "cca_time1": 3, "head_dim": 7, "rope_parameters": ZAYA_ROPE},
            ],
            [{"num_experts": 1}, {"router_hidden_size": 3}, {"moe_intermediate_size": 13}, {"hidden_act": "gelu"}],
            [UNTIED, EPSILON, {"rope_parameters": None, "layer_types": None, "sliding_window": None}],
        ),
        {"num_hidden_layers": 1, "layer_types": ["hybrid_sliding"], "sliding_window": 1},
    ],
    "bailing_hybrid": [
        *together(
            [
                {"head_dim": 7},
                {"short_conv_kernel_size": 2},
                {"kda_safe_gate": False},
                {"kda_lower_bound": -0.5},
                {"head_dim": 3, "short_conv_kernel_size": 5},
            ],
            [
                {"num_attention_heads": 1, "num_key_value_heads": 1},
                {"attention_bias": True},
                {"rope_theta": 77.0},
                {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9}},
                {"kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 3, "v_head_dim": 17},
            ],
            [{"moe_renormalize": False}, {"num_shared_experts": 2}, {"num_expert_group": 1}, {"topk_group": 2}],
            [TIED, EPSILON],
        ),
        {"layer_types": None, "layer_group_size": 2},
        {"first_k_dense_replace": 0},
    ],
    "kimi_linear": [
        *together(
            [
                {"linear_num_heads": 1},
                {"linear_head_dim": 7},
                {"linear_conv_kernel_dim": 2},
                {"linear_conv_kernel_dim": 5},
                {"linear_num_heads": 5, "linear_head_dim": 3},
            ],
            [
                {"num_attention_heads": 1, "num_key_value_heads": 1},
                {"q_lora_rank": 13},
                {"q_lora_rank": 48, "kv_lora_rank": 48},
                {"attention_bias": True, "q_lora_rank": 7},
                {"kv_lora_rank": 7, "qk_rope_head_dim": 7, "qk_nope_head_dim": 3, "v_head_dim": 17},
            ],
            [
                {"num_experts": 8, "num_expert_group": 4, "topk_group": 2},
                {"moe_renormalize": False},
                {"num_shared_experts": 3},
                {"routed_scaling_factor": 0.7},
                {"num_experts": 2, "num_experts_per_token": 2},
            ],
            [TIED, EPSILON],
        ),
        {"layer_types": None, "num_hidden_layers": 5},
        {"layer_types": ["linear_attention"] * 3},
        {"layer_types": ["full_attention"] * 3},
        {"mlp_layer_types": ["sparse", "dense", "dense"]},
        {"first_k_dense_replace": 3},
        {
            "layer_types": None,
            "linear_attn_config": {
                "kda_layers": [1, 3],
                "full_attn_layers": [2],
                "head_dim": 8,
                "num_heads": 5,
                "short_conv_kernel_size": 3,
            },
        },
    ],
    "qwen3_next": [
        *GATED_DELTA,
        {"layer_types": None, "full_attention_interval": 2},
        {"mlp_only_layers": [0, 1, 2, 3]},
        *with_experts("qwen3_next", QWEN_EXPERTS),
        {**EXPERTS["qwen3_next"], "norm_topk_prob": False},
        {**EXPERTS["qwen3_next"], "mlp_only_layers": [1, 2]},
        {**EXPERTS["qwen3_next"], "decoder_sparse_step": 2},
        {**EXPERTS["qwen3_next"], "hidden_act": "silu"},
        *({**row, **ODD_EXPERTS, "norm_topk_prob": False} for row in (ODD_NET, ODD_ATTENTION)),
    ],
    "qwen3_5_moe_text": [*QWEN_EXPERTS[1:], {"layer_types": None}, TIED, {**ODD_NET, **ODD_EXPERTS}],
    "qwen3_5_text": [*GATED_DELTA, {"layer_types": None}, ODD_NET, ODD_ATTENTION],
}
