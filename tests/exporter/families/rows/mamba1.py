"""Families of Mamba1, and of the RG-LRU."""

from __future__ import annotations

from typing import Any

from tests.exporter.families.rows.parts import EPSILON, HEADS, ONE_LAYER, TIED, together

MAMBA1_ROWS: dict[str, list[dict[str, Any]]] = {
    **{
        family: together(
            [
                {"state_size": 7},
                {"state_size": 40},
                {"conv_kernel": 2},
                {"conv_kernel": 5},
                {"use_conv_bias": False},
                {"use_bias": True},
                {"expand": 3},
                {"expand": 1, "hidden_size": 40},
                {"expand": 16, "intermediate_size": 56},
                {"time_step_rank": 1},
                {"time_step_rank": "auto"},
                {"hidden_act": "swish"},
            ],
            [{"tie_word_embeddings": False}, ONE_LAYER, {"residual_in_fp32": False}, {"layer_norm_epsilon": 0.1}, *own],
        )
        for family, own in (("mamba", []), ("falcon_mamba", [{"mixer_rms_eps": 0.1}]))
    },
    "jamba": together(
        [
            {"mamba_d_state": 7},
            {"mamba_d_state": 24},
            {"mamba_d_conv": 2},
            {"mamba_conv_bias": False},
            {"mamba_proj_bias": True},
            {"mamba_expand": 3},
            {"mamba_dt_rank": 1},
            {"attn_layer_period": 1, "attn_layer_offset": 0},
            {"attn_layer_period": 8, "attn_layer_offset": 4},
        ],
        [*HEADS, {"head_dim": 18}, {"hidden_act": "swish"}],
        [
            {"num_experts": 1},
            {"num_experts": 7, "num_experts_per_tok": 3},
            {"num_experts": 3, "num_experts_per_tok": 1},
            {"expert_layer_period": 1, "expert_layer_offset": 0},
            {"expert_layer_period": 5, "expert_layer_offset": 4},
        ],
        [TIED, EPSILON],
    ),
    "recurrent_gemma": together(
        [
            {"lru_width": None},
            {"lru_width": 96},
            {"conv1d_width": 2},
            {"conv1d_width": 5},
            {"block_types": ["recurrent"] * 2},
            {"block_types": ["attention", "recurrent", "recurrent"]},
        ],
        [
            {"num_attention_heads": 3, "num_key_value_heads": 3},
            {"num_key_value_heads": 1},
            {"num_key_value_heads": None},
            {"attention_bias": True},
            {"attention_window_size": 3},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 250.0, "partial_rotary_factor": 1.0}},
        ],
        [{"tie_word_embeddings": False}, EPSILON, {"logits_soft_cap": 2.0}, {"hidden_activation": "silu"}],
    ),
    "zamba": together(
        [
            {"mamba_d_state": 7},
            {"mamba_d_conv": 2},
            {"mamba_conv_bias": False},
            {"mamba_proj_bias": True},
            {"mamba_expand": 3},
            {"mamba_dt_rank": 1},
            {"mamba_dt_rank": "auto"},
            {"n_mamba_heads": 1},
            {"n_mamba_heads": 2},
        ],
        [*HEADS, {"attention_head_dim": 18}, {"hidden_act": "silu"}],
        [{"tie_word_embeddings": False}, EPSILON, {"num_hidden_layers": 8, "layers_block_type": None}],
    ),
}
