"""Every value that a family's config can express, against transformers: a base case and rows that vary one factor.

Factors of parts that share nothing (attention, a recurrent mixer) vary in one row: hidden states are compared after
every layer, so that a difference shows in the layer of its part.
"""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from tests.support.agreement import assert_one_shot_agrees
from tests.support.effort import sample
from tests.support.tiny_models import BASE_CONFIGS, EXPERTS, save_tiny_model


def together(*parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that each vary one factor of every part."""
    rows = []
    for changes in zip_longest(*parts, fillvalue={}):
        row = {name: value for change in changes for name, value in change.items()}
        assert len(row) == sum(map(len, changes)), f"two parts set one field: {changes}"
        rows.append(row)
    return rows


ONE_LAYER: dict[str, Any] = {"num_hidden_layers": 1}
TIED: dict[str, Any] = {"tie_word_embeddings": True}
HEADS: list[dict[str, Any]] = [
    {"num_key_value_heads": 1},
    {"num_key_value_heads": 6},
    {"num_attention_heads": 3, "num_key_value_heads": 3},
]
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
YARN: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 5e3,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 2.5, 4.0, 9.0],
}
ROPES: list[dict[str, Any]] = [
    {"rope_parameters": {"rope_type": "default", "rope_theta": 250.0}},
    {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}},
    {"rope_parameters": LLAMA3},
    {"rope_parameters": YARN},
    {"rope_parameters": {**YARN, "beta_fast": 8, "beta_slow": 2, "truncate": False}},
    {"rope_parameters": {**YARN, "attention_factor": 1.3}},
    {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9}},
]
ATTENTION: list[dict[str, Any]] = [*HEADS, *ROPES, {"head_dim": 18}, {"attention_bias": True}]

EPSILON: dict[str, Any] = {"rms_norm_eps": 0.1}
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
GRANITE_EXPERTS: list[dict[str, Any]] = [
    {},
    {"num_local_experts": 7, "num_experts_per_tok": 3},
    {"num_local_experts": 3, "num_experts_per_tok": 1},
    {"num_local_experts": 1, "num_experts_per_tok": 1},
    {"intermediate_size": 13},
    {"shared_intermediate_size": 9},
]
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


def with_experts(family: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**EXPERTS[family], **row} for row in rows]


ROWS: dict[str, list[dict[str, Any]]] = {
    "llama": together(
        ATTENTION,
        [
            {"mlp_bias": True},
            {"intermediate_size": 37},
            *({"hidden_act": name} for name in ("gelu", "gelu_pytorch_tanh", "relu", "relu2")),
        ],
        [TIED, ONE_LAYER, EPSILON],
    ),
    "lfm2": [
        *together(
            [*HEADS, *ROPES[:1], *ROPES[3:4], {"head_dim": 18}],
            [
                {"conv_L_cache": 2},
                {"conv_L_cache": 7},
                {"conv_bias": True},
                {"layer_types": None, "full_attn_idxs": [3]},
                {"layer_types": ["conv"] * 4},
                {"layer_types": ["full_attention"] * 4},
            ],
            [
                {"tie_word_embeddings": False},
                {"norm_eps": 0.1},
                {"block_auto_adjust_ff_dim": False},
                {"block_ffn_dim_multiplier": 1.3},
                {"block_ff_dim": 70},
                {"tie_embedding": False},
            ],
        ),
        {"num_hidden_layers": 1, "layer_types": ["conv"]},
    ],
    "lfm2_moe": [
        *together(
            [{"num_experts": 3, "num_experts_per_tok": 3}, {"moe_intermediate_size": 13}, {"num_experts_per_tok": 1}],
            [{"norm_topk_prob": False}, {"use_expert_bias": False}, {"routed_scaling_factor": 2.5}],
            [{"conv_bias": True}, *ROPES[:1], {"tie_word_embeddings": False}],
        ),
        {"num_dense_layers": 0},
        {"num_dense_layers": 3},
        {"layer_types": ["full_attention"] * 3},
    ],
    "mistral": [
        *together(
            [*HEADS, *ROPES[:2], {"head_dim": 18}, {"head_dim": None}],
            [{"sliding_window": None}, {"sliding_window": 1}],
            [TIED],
        ),
        {**ONE_LAYER, "sliding_window": 4},
    ],
    "olmo2": together(
        [*HEADS, ROPES[2], {"attention_bias": True}], [{"head_dim": 10}, {"hidden_act": "gelu"}], [TIED, EPSILON]
    ),
    "gpt_oss": together(
        [*HEADS, {"attention_bias": False}, {"head_dim": 18}],
        [
            {"num_local_experts": 1, "num_experts_per_tok": 1},
            {"num_local_experts": 7, "num_experts_per_tok": 3},
            {"swiglu_alpha": 0.9, "swiglu_limit": 0.5},
            {"swiglu_limit": 0.1},
        ],
        [TIED, EPSILON, {"layer_types": ["full_attention"] * 2}, {"layer_types": None, "num_hidden_layers": 3}],
        [*({"rope_parameters": rope} for rope in ({"rope_type": "default"}, YARN, LLAMA3))],
    ),
    "olmo3": [
        *together(
            [*HEADS, {"attention_bias": True}],
            [
                {"rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_theta": 300.0}}},
                {"rope_parameters": {"full_attention": LLAMA3}},
                {"layer_types": None, "num_hidden_layers": 5},
                {"layer_types": ["full_attention"] * 2},
            ],
            [TIED, EPSILON],
        ),
    ],
    "gemma3_text": together(
        [*HEADS, {"attention_bias": True}, {"head_dim": 18}],
        [
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}}},
            {"layer_types": None, "num_hidden_layers": 7},
            {"layer_types": ["sliding_attention"] * 3, "sliding_window": 1},
            {"rope_parameters": {"sliding_attention": {"rope_theta": 50.0}, "full_attention": {"rope_theta": 500.0}}},
        ],
        [{"tie_word_embeddings": False}, EPSILON, {"final_logit_softcapping": 0.7}, {"hidden_activation": "relu"}],
    ),
    "lfm3": [
        *together(
            [*HEADS, {"attention_bias": True}, {"head_dim": 18}],
            [{"conv_L_cache": 2}, {"conv_L_cache": 3}, {"conv_bias": True}],
            [{"tie_word_embeddings": False}, {"norm_eps": 0.1}, {"use_sandwich_norm": False}],
            [
                {"use_attention_gate": False},
                {
                    "rope_parameters": {
                        "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 90.0},
                        "full_attention": {
                            "rope_type": "proportional",
                            "rope_theta": 700.0,
                            "partial_rotary_factor": 0.25,
                            "factor": 3.0,
                        },
                    }
                },
                {"layer_types": None, "num_hidden_layers": 7},
                {"layer_types": ["conv"] * 4},
            ],
        ),
        {"layer_types": ["sliding_attention"] * 4},
    ],
    "phi3": [
        *together(
            [*HEADS, {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5}}],
            [{"sliding_window": 5}, {"hidden_act": "gelu"}, ONE_LAYER],
            [TIED, EPSILON],
        ),
        {"max_position_embeddings": 4096, "original_max_position_embeddings": 64, "rope_parameters": LONG},
        {
            "original_max_position_embeddings": 64,
            "rope_scaling": {**LONG, "rope_type": "su", "original_max_position_embeddings": 64},
        },
    ],
    "qwen2": [
        *together([*HEADS, *ROPES[2:4], {"head_dim": 18}], [{"hidden_act": "gelu"}, ONE_LAYER], [TIED, EPSILON]),
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
        {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    ],
    "qwen3_moe": [
        *together(
            [*HEADS, *ROPES[:1], {"head_dim": 18}, {"attention_bias": True}],
            [{"norm_topk_prob": True}, {"num_experts": 3, "num_experts_per_tok": 3}, {"moe_intermediate_size": 13}],
            [TIED, EPSILON],
        ),
        {"mlp_only_layers": None},
        {"mlp_only_layers": None, "decoder_sparse_step": 2},
        {"num_experts": 0},
        {"use_sliding_window": True, "sliding_window": 5},
        {"use_sliding_window": False, "sliding_window": 5},
    ],
    "cwm": [*HEADS, *ROPES[:4], TIED, {"mlp_bias": True}, {"layer_types": ["full_attention"] * 2}],
    "ernie4_5": [*HEADS, *ROPES[:3], {"tie_word_embeddings": False}, {"use_bias": True}],
    "glm4": [
        *HEADS,
        *({"rope_parameters": {**rope["rope_parameters"], "partial_rotary_factor": 0.5}} for rope in ROPES[:3]),
        {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 1.0}},
        TIED,
        {"attention_bias": False},
    ],
    "internlm3": [*HEADS, *ROPES[:3], TIED, {"attention_bias": True, "mlp_bias": True}],
    "exaone4": [
        *HEADS,
        *ROPES[:3],
        TIED,
        {"num_hidden_layers": 5, "sliding_window_pattern": 3},
        {"layer_types": ["full_attention"] * 2, "sliding_window_pattern": "LLLG"},
        {"layer_types": ["full_attention"] * 2, "sliding_window": None},
    ],
    "arcee": [*HEADS, *ROPES[:3], TIED, {"attention_bias": True}, {"mlp_bias": True}, {"hidden_act": "gelu"}],
    "granite": [*HEADS, *ROPES[:3], TIED, {"attention_bias": True}, {"mlp_bias": True}, {"residual_multiplier": 1.0}],
    "seed_oss": [
        *HEADS,
        *ROPES[:3],
        TIED,
        {"attention_bias": False},
        {"attention_out_bias": True},
        {"mlp_bias": True},
    ],
    "smollm3": [
        *together(
            [*HEADS, *ROPES[:2], {"attention_bias": True}, {"head_dim": 18}],
            [{"no_rope_layers": [0, 0, 0]}, {"no_rope_layers": [0, 1, 1, 0]}, {"no_rope_layer_interval": 4}, ONE_LAYER],
            [{"tie_word_embeddings": False}, EPSILON, {"mlp_bias": True}],
        ),
        {"use_sliding_window": True, "sliding_window": 5},
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
        {"use_sliding_window": False, "sliding_window": 5},
    ],
    "qwen3": [
        *together(ATTENTION, [{"hidden_act": "gelu"}], [TIED, ONE_LAYER, EPSILON]),
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
        {"use_sliding_window": True, "sliding_window": 1, "max_window_layers": 1},
        {"use_sliding_window": False, "sliding_window": 5, "max_window_layers": 0},
        {
            "use_sliding_window": True,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ],
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


def cases() -> list[Any]:
    """Every row of every family. On push: each family's own values, and the base; not rows of values that an earlier
    family had."""
    found, known = [], set[tuple[str, str]]()
    for family, rows in ROWS.items():
        values = [{(name, repr(value)) for name, value in row.items()} for row in rows]
        on_push = [(family, row) for row, own in zip(rows, values, strict=True) if not own <= known]
        found += sample([(family, row) for row in [{}, *rows]], [(family, {}), *on_push])
        known.update(*values)
    return found


def case_name(value: object) -> str:
    return value if isinstance(value, str) else ",".join(f"{k}={v}" for k, v in value.items())[:70] or "base"  # type: ignore[attr-defined]


def test_every_family_has_rows() -> None:
    assert set(ROWS) == set(BASE_CONFIGS)


@pytest.mark.parametrize(("model_type", "overrides"), cases(), ids=case_name)
def test_same_as_transformers(model_type: str, overrides: dict[str, Any], tmp_path: Path) -> None:
    assert_one_shot_agrees(save_tiny_model(tmp_path, model_type, **overrides))
