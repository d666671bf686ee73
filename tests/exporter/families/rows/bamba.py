"""Bamba, and families whose configs name the sizes of Mamba2 like Bamba's."""

from __future__ import annotations

from typing import Any

from tests.exporter.families.rows.parts import EPSILON, HEADS, ROPES, TIED, YARN, together, with_experts

MAMBA_D: list[dict[str, Any]] = [
    {"mamba_n_groups": 1},
    {"mamba_n_groups": 6},
    {"mamba_d_state": 7},
    {"mamba_d_conv": 2},
    {"mamba_d_conv": 5},
    {"mamba_conv_bias": False},
    {"mamba_proj_bias": True},
    {"mamba_expand": 3, "mamba_d_head": 24},
    {"mamba_d_head": "auto"},
    {"mamba_n_heads": 12, "mamba_d_head": 8},
    {"mamba_chunk_size": 64},
    {"time_step_limit": [0.02, 0.3]},
]
GRANITE_EXPERTS: list[dict[str, Any]] = [
    {},
    {"num_local_experts": 7, "num_experts_per_tok": 3},
    {"num_local_experts": 3, "num_experts_per_tok": 1},
    {"num_local_experts": 1, "num_experts_per_tok": 1},
    {"intermediate_size": 13},
    {"shared_intermediate_size": 9},
]

BAMBA_ROWS: dict[str, list[dict[str, Any]]] = {
    "bamba": [
        *together(
            MAMBA_D,
            [
                *HEADS,
                {"attention_bias": True},
                {"head_dim": 20},
                {"rope_parameters": {"rope_type": "default", "rope_theta": 250.0, "partial_rotary_factor": 1.0}},
                {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}},
                {"rope_parameters": {**YARN, "partial_rotary_factor": 0.5}},
            ],
            [TIED, {"mlp_bias": True}, EPSILON],
        ),
        {"attn_layer_indices": []},
        {"attn_layer_indices": None},
        {"attn_layer_indices": [0, 1, 2, 3]},
        {"num_hidden_layers": 1, "attn_layer_indices": []},
    ],
    "granitemoehybrid": [
        *together(
            MAMBA_D,
            [
                *HEADS,
                {"attention_bias": True},
                {"head_dim": 18},
                {"position_embedding_type": "rope"},
                {"position_embedding_type": "rope", "rope_parameters": {"rope_type": "default", "rope_theta": 77.0}},
                {"position_embedding_type": "nope"},
                {"attention_multiplier": 1.0},
            ],
            [
                TIED,
                EPSILON,
                {"embedding_multiplier": 1.0},
                {"embedding_multiplier": 12},
                {"residual_multiplier": 0.22},
                {"residual_multiplier": 1.0},
                {"logits_scaling": 8},
                {"logits_scaling": 1.0},
                {"num_experts_per_tok": 0},
            ],
        ),
        {"layer_types": ["full_attention"] * 4},
        {"layer_types": None},
        {"layer_types": ["mamba", "attention", "mamba", "attention"]},
        *with_experts("granitemoehybrid", GRANITE_EXPERTS),
    ],
    "falcon_h1": [
        *together(
            [row for row in MAMBA_D if "mamba_expand" not in row],
            [*HEADS, *ROPES[:1], {"head_dim": 18}, {"attention_bias": True}],
            [
                TIED,
                EPSILON,
                {"projectors_bias": True},
                {"mamba_rms_norm": True},
                {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
                {"mlp_bias": True, "ssm_multipliers": None},
            ],
        ),
        {"mamba_d_ssm": None},
        {"mamba_d_ssm": 48, "mamba_d_head": 8},
        {"mlp_multipliers": None, "key_multiplier": 1.0, "ssm_in_multiplier": 1.0, "ssm_out_multiplier": 1.0},
    ],
}
