"""The fields of the config classes of transformers, each with the kind of its value (see field_kinds)."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.exporter.families.field_kinds import Table, kinds_of

_ATTENTION: Table = {
    "int": "num_hidden_layers num_attention_heads max_position_embeddings",
    "float": "rms_norm_eps",
    "str": "hidden_act",
    "object?": "rope_parameters",
}
_BIAS: Table = {"bool": "attention_bias"}
_MAMBA_D: Table = {
    "int?": "num_key_value_heads mamba_n_heads mamba_n_groups mamba_d_state mamba_d_conv mamba_expand mamba_chunk_size",
    "int or str?": "mamba_d_head",
    "bool?": "mamba_conv_bias mamba_proj_bias",
    "[float]?": "time_step_limit",
    "number?": "attention_dropout",
    "int": "intermediate_size",
}
_DELTA: Table = {
    "int": "num_key_value_heads head_dim linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim "
    "linear_num_key_heads linear_num_value_heads",
    "[str]?": "layer_types",
    "number": "attention_dropout",
}
_QWEN_EXPERTS: Table = {
    "int": "moe_intermediate_size num_experts_per_tok num_experts",
    "bool": "output_router_logits",
    "float": "router_aux_loss_coef",
}
_SHARED_EXPERT: Table = {"int": "shared_expert_intermediate_size"}
_LLAMA: Table = {
    "fraction": "initializer_range",
    "int": "intermediate_size",
    "int?": "num_key_value_heads pretraining_tp head_dim",
    "bool": "mlp_bias",
    "number?": "attention_dropout",
}
_QWEN2: Table = {
    "int": "intermediate_size max_window_layers",
    "int?": "num_key_value_heads sliding_window",
    "bool": "use_sliding_window",
    "[str]?": "layer_types",
    "number": "attention_dropout",
}
_SHORT_CONV: Table = {
    "int": "intermediate_size num_key_value_heads num_hidden_layers num_attention_heads max_position_embeddings "
    "conv_L_cache",
    "float": "norm_eps",
    "bool": "conv_bias",
    "[str]?": "layer_types",
    "object?": "rope_parameters",
}
_LFM2: Table = {
    "int": "block_multiple_of",
    "bool": "block_auto_adjust_ff_dim",
    "number": "block_ffn_dim_multiplier",
    "[int]?": "full_attn_idxs",
}
_LFM2_MOE: Table = {
    "int": "moe_intermediate_size num_dense_layers num_experts_per_tok num_experts",
    "bool": "output_router_logits use_expert_bias norm_topk_prob",
    "float": "routed_scaling_factor",
}
_MISTRAL: Table = {
    "int": "intermediate_size num_key_value_heads",
    "int?": "head_dim sliding_window",
    "number": "attention_dropout",
}
_SMOLLM3: Table = {
    "int": "intermediate_size no_rope_layer_interval",
    "int?": "num_key_value_heads sliding_window",
    "bool": "use_sliding_window mlp_bias",
    "[int]?": "no_rope_layers",
    "[str]?": "layer_types",
    "number": "attention_dropout",
}
_OLMO2: Table = {"int": "intermediate_size", "int?": "num_key_value_heads", "number": "attention_dropout"}
_OLMO3: Table = {"int?": "sliding_window", "[str]?": "layer_types"}
_GEMMA3: Table = {
    "int": "num_hidden_layers num_attention_heads num_key_value_heads intermediate_size head_dim "
    "max_position_embeddings query_pre_attn_scalar",
    "int?": "sliding_window",
    "float": "rms_norm_eps",
    "float?": "final_logit_softcapping attn_logit_softcapping",
    "bool?": "use_bidirectional_attention",
    "str": "hidden_activation",
    "[str]?": "layer_types",
    "number?": "attention_dropout",
    "object?": "rope_parameters",
}
_PHI3: Table = {
    "int": "intermediate_size original_max_position_embeddings",
    "int?": "num_key_value_heads sliding_window",
    "number": "resid_pdrop embd_pdrop attention_dropout",
}
_LFM3: Table = {
    "int": "head_dim",
    "int?": "sliding_window",
    "bool": "use_sandwich_norm use_attention_gate attention_bias",
    "float": "attention_dropout",
}
_BAMBA: Table = {
    "bool": "mlp_bias",
    "int?": "num_logits_to_keep",
    "[int]?": "attn_layer_indices",
    "float?": "z_loss_coefficient",
}
_FALCON_H1: Table = {
    "int?": "mamba_d_ssm num_logits_to_keep",
    "bool?": "use_cache mamba_norm_before_gate mamba_rms_norm projectors_bias",
    "bool": "mlp_bias",
    "float?": "lm_head_multiplier embedding_multiplier key_multiplier attention_out_multiplier "
    "attention_in_multiplier ssm_in_multiplier ssm_out_multiplier",
    "[float]?": "mlp_multipliers ssm_multipliers",
}
_LATENT: Table = {
    "int": "intermediate_size moe_intermediate_size n_shared_experts kv_lora_rank qk_rope_head_dim qk_nope_head_dim "
    "n_group num_local_experts",
    "int?": "num_key_value_heads pretraining_tp",
    "float": "routed_scaling_factor",
    "bool": "output_router_logits norm_topk_prob",
    "[str]?": "mlp_layer_types layer_types",
}
_KIMI: Table = {
    "int": "num_hidden_layers num_attention_heads max_position_embeddings linear_head_dim linear_num_heads "
    "linear_conv_kernel_dim",
    "int?": "q_lora_rank v_head_dim topk_group num_experts_per_tok",
    "float": "rms_norm_eps",
    "str": "hidden_act",
    "number?": "attention_dropout",
}
_LING: Table = {
    "int": "num_hidden_layers num_attention_heads max_position_embeddings head_dim v_head_dim topk_group "
    "num_experts_per_tok first_k_dense_replace num_mtp_layers short_conv_kernel_size layer_group_size",
    "float": "rms_norm_eps attention_dropout kda_lower_bound",
    "bool": "kda_safe_gate",
    "str": "hidden_act",
    "number": "rope_theta mtp_loss_scaling_factor",
    "object?": "rope_parameters",
}
_MINIMAX: Table = {
    "int": "intermediate_size num_key_value_heads num_experts_per_tok num_local_experts block_size",
    "int?": "head_dim sliding_window",
    "number": "attention_dropout full_attn_alpha_factor full_attn_beta_factor linear_attn_alpha_factor "
    "linear_attn_beta_factor mlp_alpha_factor mlp_beta_factor",
    "float": "router_aux_loss_coef router_jitter_noise",
    "bool": "output_router_logits",
    "[str]?": "layer_types",
}
_GRANITE: Table = {
    "int": "shared_intermediate_size",
    "int?": "num_local_experts num_experts_per_tok",
    "number?": "embedding_multiplier logits_scaling residual_multiplier attention_multiplier",
    "bool?": "output_router_logits",
    "float?": "router_aux_loss_coef",
    "str?": "position_embedding_type",
    "[str]?": "layer_types",
}
_OLMO_HYBRID: Table = {
    "fraction": "initializer_range",
    "int": "intermediate_size linear_conv_kernel_dim",
    "int?": "num_key_value_heads linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim",
    "float": "linear_a_log_min linear_a_log_max linear_dt_min linear_dt_max linear_dt_init_floor",
    "bool": "linear_allow_neg_eigval",
    "[str]?": "layer_types",
    "number?": "attention_dropout",
}
_MAMBA2: Table = {
    "int": "num_heads head_dim state_size num_hidden_layers expand conv_kernel n_groups chunk_size",
    "float": "layer_norm_epsilon time_step_min time_step_max time_step_floor",
    "bool": "use_bias use_conv_bias residual_in_fp32 rescale_prenorm_residual",
    "str": "hidden_act",
    "int or str": "time_step_rank",
    "[float]": "time_step_limit",
}
_MAMBA: Table = {
    "int": "state_size num_hidden_layers expand conv_kernel",
    "float": "layer_norm_epsilon time_step_scale time_step_min time_step_max time_step_floor",
    "bool": "use_bias use_conv_bias residual_in_fp32 rescale_prenorm_residual use_mambapy use_associative_scan",
    "str": "hidden_act time_step_init_scheme",
    "int or str": "time_step_rank",
}
_JAMBA: Table = {
    "int": "num_hidden_layers num_attention_heads max_position_embeddings intermediate_size num_experts_per_tok "
    "num_key_value_heads num_experts expert_layer_period expert_layer_offset "
    "attn_layer_period attn_layer_offset mamba_d_state mamba_d_conv mamba_expand",
    "bool": "output_router_logits use_mamba_kernels mamba_conv_bias mamba_proj_bias use_mambapy use_associative_scan",
    "float": "router_aux_loss_coef rms_norm_eps",
    "number": "attention_dropout",
    "str": "hidden_act",
    "int or str": "mamba_dt_rank",
}
_NEMOTRON_H: Table = {
    "int": "num_logits_to_keep num_attention_heads num_key_value_heads head_dim max_position_embeddings "
    "intermediate_size ssm_state_size mamba_num_heads mamba_head_dim n_groups conv_kernel expand chunk_size "
    "n_routed_experts n_shared_experts moe_intermediate_size moe_shared_expert_intermediate_size num_experts_per_tok "
    "n_group topk_group num_nextn_predict_layers",
    "int?": "sliding_window moe_latent_size",
    "[str]?": "layers_block_type mtp_layers_block_type",
    "bool": "attention_bias mlp_bias use_mamba_kernels use_conv_bias mamba_proj_bias output_router_logits "
    "moe_shared_expert_overlap norm_topk_prob use_bias residual_in_fp32 rescale_prenorm_residual",
    "number": "attention_dropout routed_scaling_factor hidden_dropout",
    "str": "mlp_hidden_act mamba_hidden_act mamba_ssm_cache_dtype",
    "float": "time_step_min time_step_max time_step_floor layer_norm_epsilon",
    "[float]": "time_step_limit",
}
_NEXT: Table = {
    "int": "intermediate_size decoder_sparse_step",
    "bool": "norm_topk_prob",
    "[int]?": "mlp_only_layers",
}
_QWEN3_MOE: Table = {
    "int": "num_key_value_heads",
    "int?": "sliding_window",
    "bool": "use_sliding_window",
    "number": "attention_dropout",
}
# Fields that transformers reads without declaring them: other spellings, and what its models look for by name.
_UNDECLARED_ROPE: Table = {"object?": "rope_scaling"}
_UNDECLARED_ALWAYS: Table = {**_UNDECLARED_ROPE, "int": "head_dim"}
_LATENT_SPELLINGS: Table = {
    "int": "num_experts num_expert_group num_experts_per_token num_shared_experts model_max_length",
    "bool": "moe_renormalize",
}
_UNDECLARED: Mapping[str, Table] = {
    "bailing_hybrid": {
        **_UNDECLARED_ROPE,
        **_LATENT_SPELLINGS,
        "int": f"{_LATENT_SPELLINGS['int']} num_nextn_predict_layers linear_head_dim linear_num_heads "
        "linear_conv_kernel_dim",
    },
    "falcon_mamba": {**_UNDECLARED_ALWAYS, "bool": "use_falcon_mambapy"},
    "granitemoehybrid": {**_UNDECLARED_ROPE, "int": "head_dim", "[str]": "layers_block_type"},
    "jamba": {"int": "head_dim num_local_experts"},
    "kimi_linear": {**_LATENT_SPELLINGS, "object?": "rope_parameters rope_scaling"},
    "lfm2": {**_UNDECLARED_ROPE, "int": "head_dim block_ff_dim", "bool": "tie_embedding"},
    "lfm2_moe": {**_UNDECLARED_ROPE, "int": "head_dim", "bool": "tie_embedding"},
    "nemotron_h": {
        "object?": "rope_parameters rope_scaling",
        "[str]": "layer_types",
        "[float]": "mamba_dt_limit",
        "float": "mamba_dt_min mamba_dt_max mamba_dt_init_floor",
        "int": "mamba_n_groups mamba_d_conv mamba_chunk_size mamba_expand num_local_experts",
        "bool": "mamba_conv_bias",
        "str": "hybrid_override_pattern mtp_hybrid_override_pattern",
    },
}

# model_type -> field -> kind, as transformers declares them. Families may have KINDS in their own file instead.
DECLARED_KINDS: Mapping[str, Mapping[str, str]] = {
    "bailing_hybrid": kinds_of(_BIAS, _LATENT, _LING),
    "bamba": kinds_of(_ATTENTION, _BIAS, _MAMBA_D, _BAMBA),
    "falcon_h1": kinds_of(_ATTENTION, _BIAS, _MAMBA_D, _FALCON_H1),
    "gemma3_text": kinds_of(_BIAS, _GEMMA3),
    "falcon_mamba": kinds_of(_MAMBA, {"float": "mixer_rms_eps"}),
    "granitemoehybrid": kinds_of(_ATTENTION, _BIAS, _MAMBA_D, _GRANITE),
    "jamba": kinds_of(_JAMBA),
    "kimi_linear": kinds_of(_BIAS, _LATENT, _KIMI),
    "lfm2": kinds_of(_SHORT_CONV, _LFM2),
    "lfm2_moe": kinds_of(_SHORT_CONV, _LFM2_MOE),
    "lfm3": kinds_of(_SHORT_CONV, _LFM3),
    "llama": kinds_of(_ATTENTION, _BIAS, _LLAMA),
    "mamba": kinds_of(_MAMBA),
    "mamba2": kinds_of(_MAMBA2),
    "minimax": kinds_of(_ATTENTION, _MINIMAX),
    "mistral": kinds_of(_ATTENTION, _MISTRAL),
    "nemotron_h": kinds_of(_NEMOTRON_H),
    "olmo2": kinds_of(_ATTENTION, _BIAS, _OLMO2),
    "olmo3": kinds_of(_ATTENTION, _BIAS, _OLMO2, _OLMO3),
    "olmo_hybrid": kinds_of(_ATTENTION, _BIAS, _OLMO_HYBRID),
    "phi3": kinds_of(_ATTENTION, _PHI3),
    "qwen2": kinds_of(_ATTENTION, _QWEN2),
    "qwen3": kinds_of(_ATTENTION, _BIAS, _QWEN2, {"int": "head_dim"}),
    "qwen3_5_moe_text": kinds_of(_ATTENTION, _BIAS, _DELTA, _QWEN_EXPERTS, _SHARED_EXPERT),
    "qwen3_5_text": kinds_of(_ATTENTION, _BIAS, _DELTA, {"int": "intermediate_size"}),
    "qwen3_moe": kinds_of(_ATTENTION, _BIAS, _QWEN_EXPERTS, _NEXT, _QWEN3_MOE),
    "qwen3_next": kinds_of(_ATTENTION, _BIAS, _DELTA, _QWEN_EXPERTS, _SHARED_EXPERT, _NEXT),
    "smollm3": kinds_of(_ATTENTION, _BIAS, _SMOLLM3),
}


def undeclared_kinds(model_type: str) -> Mapping[str, str]:
    """field -> kind of what transformers reads without declaring it."""
    return kinds_of(_UNDECLARED.get(model_type, _UNDECLARED_ALWAYS))


# Fields that transformers computes from others: its config classes cannot load a file that has them, even as null.
_COMPUTED_ALWAYS = ("is_heterogeneous", "per_layer_attributes", "use_return_dict")
_COMPUTED: Mapping[str, tuple[str, ...]] = {
    "bamba": ("layers_block_type",),
    "falcon_h1": ("layers_block_type",),
    "falcon_mamba": ("layer_types",),
    "jamba": ("layer_types", "layers_block_type", "layers_num_experts"),
    "mamba": ("layer_types",),
    "mamba2": ("layer_types",),
    "recurrent_gemma": ("layers_block_type",),
}


def computed_fields(model_type: str) -> tuple[str, ...]:
    """The fields that transformers computes, which a config.json must not have."""
    return (*_COMPUTED_ALWAYS, *_COMPUTED.get(model_type, ()))
