"""Families of Mamba2 with names of their own for its sizes."""

from __future__ import annotations

from typing import Any

from tests.exporter.families.rows.parts import EPSILON, HEADS, ONE_LAYER, ROPES, TIED, together, with_experts

NEMOTRON_EXPERTS: list[dict[str, Any]] = [
    {},
    {"n_routed_experts": 7, "num_experts_per_tok": 3},
    {"num_experts_per_tok": 1},
    {"num_experts_per_tok": 6},
    {"moe_intermediate_size": 13},
    {"moe_shared_expert_intermediate_size": 9},
    {"moe_latent_size": 14},
    {"moe_latent_size": 14, "mlp_bias": True},
    {"mlp_bias": True},
    {"norm_topk_prob": False},
    {"routed_scaling_factor": 2.5},
    {"n_group": 3, "topk_group": 1},
    {"n_group": 3, "topk_group": 2, "num_experts_per_tok": 3},
    {"n_group": 2, "topk_group": 2},
    {"mlp_hidden_act": "silu"},
    {"residual_in_fp32": True},
    {"hybrid_override_pattern": "E"},
    {"hybrid_override_pattern": "EM"},
]

MAMBA2_ROWS: dict[str, list[dict[str, Any]]] = {
    "zamba2": [
        *together(
            [
                {"mamba_ngroups": 1},
                {"mamba_ngroups": 6},
                {"mamba_d_state": 7},
                {"mamba_d_conv": 2},
                {"mamba_expand": 3},
                {"n_mamba_heads": 12},
                {"chunk_size": 64},
                {"time_step_min": 0.1},
                {"add_bias_linear": True},
            ],
            [
                {"use_shared_attention_adapter": False},
                {"use_shared_attention_adapter": False, "num_key_value_heads": 2},
                {"num_attention_heads": 3},
                {"use_mem_rope": False},
                *({"rope_parameters": row["rope_parameters"]} for row in ROPES[:4]),
            ],
            [
                {"tie_word_embeddings": False},
                EPSILON,
                {"num_mem_blocks": 2},
                {"intermediate_size": None},
                {"adapter_rank": 1},
                {"hidden_act": "silu"},
            ],
        ),
        {"num_hidden_layers": 4, "num_mem_blocks": 2, "layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid"]},
        {"num_hidden_layers": 1, "layers_block_type": ["hybrid"]},
    ],
    "mamba2": together(
        [
            {"n_groups": 1},
            {"n_groups": 6},
            {"state_size": 7},
            {"conv_kernel": 2},
            {"conv_kernel": 5},
            {"use_conv_bias": False},
            {"use_bias": True},
            {"expand": 3, "head_dim": 24},
            {"num_heads": 12, "head_dim": 8},
            {"chunk_size": 64},
            {"time_step_limit": [0.02, 0.3]},
            {"norm_before_gate": True},
            {"hidden_act": "swish"},
        ],
        [TIED, ONE_LAYER, {"residual_in_fp32": False}, {"layer_norm_epsilon": 0.1}],
    ),
    "nemotron_h": [
        *together(
            [
                {"n_groups": 1},
                {"n_groups": 6},
                {"ssm_state_size": 7},
                {"conv_kernel": 2},
                {"use_conv_bias": False},
                {"use_bias": True},
                {"mamba_num_heads": 9, "n_groups": 3},
                {"mamba_head_dim": 5},
                {"chunk_size": 64},
                {"time_step_limit": [0.02, 0.3]},
                {"time_step_min": 0.1},
            ],
            [*HEADS, {"head_dim": 18}],
            [
                {"mlp_bias": True},
                *({"mlp_hidden_act": name} for name in ("silu", "gelu", "relu")),
                {"residual_in_fp32": True},
                {"layer_norm_epsilon": 0.1},
                TIED,
            ],
        ),
        {"hybrid_override_pattern": "M"},
        {"hybrid_override_pattern": "*"},
        {"hybrid_override_pattern": "M-M"},
        {"hybrid_override_pattern": "*-*"},
        {"hybrid_override_pattern": "-M*"},
        *with_experts("nemotron_h", NEMOTRON_EXPERTS),
    ],
}
