"""Families of attention, and of short convolutions between attention."""

from __future__ import annotations

from typing import Any

from tests.exporter.families.rows.parts import EPSILON, HEADS, LLAMA3, ONE_LAYER, ROPES, TIED, UNTIED, YARN, together
from tests.support.tiny_configs.near_llama import FILLED, NEAR_LLAMA, NEAR_LLAMA_CONFIGS, switches

LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 2.5, 4.0, 9.0],
}
ATTENTION: list[dict[str, Any]] = [*HEADS, *ROPES, {"head_dim": 18}, {"attention_bias": True}]


def near_llama(family: str) -> list[dict[str, Any]]:
    """Rows of a family of NEAR_LLAMA."""
    biases = [{name: value} for name in switches(family) for value in (False, True)]
    windows = [{"layer_types": ["full_attention"] * 2}] if "sliding_window" in NEAR_LLAMA_CONFIGS[family] else []
    # Configs of some families add a field to the object.
    ropes = [{"rope_parameters": {**row["rope_parameters"]}} for row in ROPES[:3]]
    heads = HEADS[:2] if family in FILLED else HEADS
    return [*heads, *ropes, TIED, UNTIED, *biases, *windows]


ATTENTION_ROWS: dict[str, list[dict[str, Any]]] = {
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
    "mixtral": [
        *together(
            HEADS,
            [{"num_local_experts": 3}, {"num_experts_per_tok": 1}, {"num_experts_per_tok": 5}],
            [{"sliding_window": None}, *ROPES[:2]],
        ),
        {"hidden_act": "gelu", "head_dim": None},
        TIED,
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
    "ministral": [*HEADS, *ROPES[:3], TIED, {"layer_types": ["full_attention"] * 2}],
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
    **{family: near_llama(family) for family in NEAR_LLAMA},
}
