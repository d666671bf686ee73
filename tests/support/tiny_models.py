"""Tiny random checkpoints of every supported family, saved by transformers. Sizes are odd on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COMMON = {"vocab_size": 97, "hidden_size": 48, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
ATTENTION = {"num_attention_heads": 6, "num_key_value_heads": 2}
MAMBA = {
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}

GATED_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 40,
    "linear_conv_kernel_dim": 4,
}

# Experts for the families whose base has none, as their configs spell them.
EXPERTS: dict[str, dict[str, Any]] = {
    "qwen3_next": {
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 28,
        "shared_expert_intermediate_size": 20,
    },
    "granitemoehybrid": {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 28},
    "nemotron_h": {
        "hybrid_override_pattern": "ME*E-",
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 28,
        "moe_shared_expert_intermediate_size": 20,
    },
}

# The layout of llama (lfm2, mamba) with one difference each, which tests of config and layers prove: tests of all that
# follows take llama (lfm2, mamba).
LIKE_LLAMA = frozenset(
    {
        *("arcee", "falcon_mamba", "granite", "seed_oss"),
        *("gemma3_text", "lfm2_moe", "lfm3", "mistral", "olmo2", "olmo3", "phi3", "qwen2"),
        *("cwm", "ernie4_5", "exaone4", "glm4", "gpt_oss", "internlm3", "qwen3_moe", "smollm3"),
    }
)
BASE_CONFIGS: dict[str, dict[str, Any]] = {
    "nemotron_h": {
        **COMMON,
        **ATTENTION,
        "head_dim": 10,
        "hybrid_override_pattern": "M-M*-M",
        "intermediate_size": 72,
        "mamba_num_heads": 6,
        "mamba_head_dim": 24,
        "ssm_state_size": 40,
        "n_groups": 3,
        "conv_kernel": 4,
        "chunk_size": 8,
        "max_position_embeddings": 512,
    },
    "bamba": {
        **COMMON,
        **ATTENTION,
        **MAMBA,
        "num_hidden_layers": 4,
        "attn_layer_indices": [2],
        "intermediate_size": 80,
        "max_position_embeddings": 512,
    },
    "granitemoehybrid": {
        **COMMON,
        **ATTENTION,
        **MAMBA,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
        "num_local_experts": 0,
        "shared_intermediate_size": 56,
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.5,
        "residual_multiplier": 0.7,
        "attention_multiplier": 0.21,
        "max_position_embeddings": 512,
    },
    "falcon_h1": {
        **COMMON,
        **ATTENTION,
        **MAMBA,
        "mamba_d_ssm": 96,
        "num_hidden_layers": 2,
        "intermediate_size": 80,
        "embedding_multiplier": 3.0,
        "lm_head_multiplier": 0.4,
        "key_multiplier": 0.6,
        "attention_in_multiplier": 1.3,
        "attention_out_multiplier": 0.9,
        "ssm_in_multiplier": 1.2,
        "ssm_out_multiplier": 0.7,
        "mlp_multipliers": [0.8, 0.6],
        "ssm_multipliers": [0.9, 0.5, 0.7, 1.1, 0.3],
        "max_position_embeddings": 512,
    },
    "mamba2": {
        **COMMON,
        "num_heads": 6,
        "head_dim": 16,
        "state_size": 24,
        "n_groups": 2,
        "num_hidden_layers": 3,
        "conv_kernel": 4,
        "expand": 2,
        "chunk_size": 8,
    },
    "mamba": {
        **COMMON,
        "state_size": 8,
        "num_hidden_layers": 3,
        "conv_kernel": 4,
        "expand": 2,
        "time_step_rank": 5,
    },
    "falcon_mamba": {
        **COMMON,
        "state_size": 8,
        "num_hidden_layers": 2,
        "conv_kernel": 4,
        "expand": 2,
    },
    "jamba": {
        **COMMON,
        **ATTENTION,
        "num_hidden_layers": 3,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "intermediate_size": 28,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "max_position_embeddings": 512,
    },
    "lfm2": {
        **COMMON,
        **ATTENTION,
        "num_hidden_layers": 4,
        "layer_types": ["conv", "full_attention", "conv", "conv"],
        "conv_L_cache": 3,
        "intermediate_size": 100,
        "block_multiple_of": 8,
        "max_position_embeddings": 512,
    },
    "lfm2_moe": {
        **COMMON,
        **ATTENTION,
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "conv_L_cache": 3,
        "num_dense_layers": 1,
        "intermediate_size": 72,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 28,
        "max_position_embeddings": 512,
    },
    "llama": {
        **COMMON,
        **ATTENTION,
        "num_hidden_layers": 3,
        "intermediate_size": 88,
        "max_position_embeddings": 512,
    },
    "lfm3": {
        **COMMON,
        **ATTENTION,
        "head_dim": 20,
        "num_hidden_layers": 4,
        "layer_types": ["conv", "full_attention", "conv", "sliding_attention"],
        "conv_L_cache": 7,
        "sliding_window": 6,
        "intermediate_size": 88,
        "max_position_embeddings": 512,
    },
    "gemma3_text": {
        **COMMON,
        **ATTENTION,
        "head_dim": 14,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 7,
        "query_pre_attn_scalar": 24,
        "intermediate_size": 88,
        "max_position_embeddings": 512,
    },
    "gpt_oss": {
        **COMMON,
        **ATTENTION,
        "head_dim": 14,
        "num_hidden_layers": 2,
        "sliding_window": 7,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "intermediate_size": 28,
        "max_position_embeddings": 512,
    },
    "cwm": {
        **COMMON,
        **ATTENTION,
        "head_dim": 14,
        "num_hidden_layers": 2,
        "sliding_window": 7,
        "intermediate_size": 88,
        "max_position_embeddings": 512,
    },
    "exaone4": {
        **COMMON,
        **ATTENTION,
        "num_hidden_layers": 2,
        "sliding_window": 7,
        "sliding_window_pattern": 2,
        "intermediate_size": 88,
        "max_position_embeddings": 512,
    },
    "ernie4_5": {
        **COMMON,
        **ATTENTION,
        "head_dim": 14,
        "num_hidden_layers": 2,
        "intermediate_size": 88,
        "max_position_embeddings": 512,
    },
    "glm4": {
        **COMMON,
        **ATTENTION,
        "head_dim": 20,
        "num_hidden_layers": 2,
        "intermediate_size": 88,
        "max_position_embeddings": 512,
    },
    "internlm3": {
        **COMMON,
        **ATTENTION,
        "head_dim": 14,
        "num_hidden_layers": 2,
        "intermediate_size": 88,
        "max_position_embeddings": 512,
    },
    "olmo3": {
        **COMMON,
        **ATTENTION,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 7,
        "intermediate_size": 88,
        "max_position_embeddings": 512,
    },
    "minimax": {
        **COMMON,
        **ATTENTION,
        "head_dim": 16,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "intermediate_size": 28,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "block_size": 8,
        "full_attn_alpha_factor": 1.3,
        "linear_attn_alpha_factor": 0.8,
        "linear_attn_beta_factor": 1.2,
        "mlp_beta_factor": 0.7,
        "max_position_embeddings": 512,
    },
    "mistral": {
        **COMMON,
        **ATTENTION,
        "head_dim": 10,
        "num_hidden_layers": 2,
        "intermediate_size": 88,
        "sliding_window": 9,
        "max_position_embeddings": 512,
    },
    "olmo2": {
        **COMMON,
        **ATTENTION,
        "num_hidden_layers": 2,
        "intermediate_size": 88,
        "max_position_embeddings": 512,
    },
    "phi3": {
        **COMMON,
        **ATTENTION,
        "num_hidden_layers": 2,
        "intermediate_size": 88,
        "max_position_embeddings": 512,
    },
    "qwen2": {
        **COMMON,
        **ATTENTION,
        "num_hidden_layers": 2,
        "intermediate_size": 88,
        "max_position_embeddings": 512,
    },
    "qwen3_moe": {
        **COMMON,
        **ATTENTION,
        "head_dim": 14,
        "num_hidden_layers": 2,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 28,
        "mlp_only_layers": [0],
        "intermediate_size": 88,
        "max_position_embeddings": 512,
    },
    "arcee": {
        **COMMON,
        **ATTENTION,
        "head_dim": 14,
        "num_hidden_layers": 2,
        "intermediate_size": 88,
        "max_position_embeddings": 512,
    },
    "granite": {
        **COMMON,
        **ATTENTION,
        "num_hidden_layers": 2,
        "intermediate_size": 88,
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.5,
        "residual_multiplier": 0.7,
        "attention_multiplier": 0.21,
        "max_position_embeddings": 512,
    },
    "seed_oss": {
        **COMMON,
        **ATTENTION,
        "head_dim": 14,
        "num_hidden_layers": 2,
        "intermediate_size": 88,
        "max_position_embeddings": 512,
    },
    "smollm3": {
        **COMMON,
        **ATTENTION,
        "num_hidden_layers": 3,
        "no_rope_layer_interval": 2,
        "intermediate_size": 88,
        "max_position_embeddings": 512,
    },
    "qwen3": {
        **COMMON,
        **ATTENTION,
        "head_dim": 14,
        "num_hidden_layers": 3,
        "intermediate_size": 88,
        "max_position_embeddings": 512,
    },
    "olmo_hybrid": {
        **COMMON,
        **ATTENTION,
        **GATED_DELTA,
        "head_dim": 10,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
        "intermediate_size": 88,
        "max_position_embeddings": 512,
    },
    "bailing_hybrid": {
        **COMMON,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "head_dim": 24,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "first_k_dense_replace": 1,
        "kv_lora_rank": 20,
        "qk_nope_head_dim": 10,
        "qk_rope_head_dim": 6,
        "v_head_dim": 14,
        "intermediate_size": 72,
        "num_experts": 6,
        "num_experts_per_token": 2,
        "num_expert_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 28,
        "num_mtp_layers": 0,
        "max_position_embeddings": 512,
    },
    "kimi_linear": {
        **COMMON,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_heads": 3,
        "linear_head_dim": 24,
        "kv_lora_rank": 20,
        "qk_nope_head_dim": 10,
        "qk_rope_head_dim": 6,
        "v_head_dim": 14,
        "intermediate_size": 72,
        "num_experts": 5,
        "num_experts_per_token": 2,
        "moe_intermediate_size": 28,
        "max_position_embeddings": 512,
    },
    "recurrent_gemma": {
        **COMMON,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "block_types": ["recurrent", "attention"],
        "attention_window_size": 7,
        "intermediate_size": 88,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
    "zamba": {
        **COMMON,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "layers_block_type": ["hybrid", "linear_attention", "hybrid"],
        "intermediate_size": 56,
        "n_mamba_heads": 3,
        "mamba_d_state": 8,
        "mamba_dt_rank": 5,
        "max_position_embeddings": 512,
    },
    "zamba2": {
        **COMMON,
        "num_attention_heads": 6,
        "num_hidden_layers": 3,
        "layers_block_type": ["hybrid", "linear_attention", "hybrid"],
        "use_shared_attention_adapter": True,
        "adapter_rank": 5,
        "use_mem_rope": True,
        "intermediate_size": 56,
        "n_mamba_heads": 6,
        "mamba_ngroups": 2,
        "mamba_d_state": 24,
        "chunk_size": 8,
        "max_position_embeddings": 512,
    },
    "qwen3_next": {
        **COMMON,
        **ATTENTION,
        **GATED_DELTA,
        "head_dim": 16,
        "num_hidden_layers": 4,
        "full_attention_interval": 3,
        "intermediate_size": 88,
        "num_experts": 0,
        "max_position_embeddings": 512,
    },
    "qwen3_5_text": {
        **COMMON,
        **ATTENTION,
        **GATED_DELTA,
        "head_dim": 24,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
        "intermediate_size": 72,
        "max_position_embeddings": 512,
    },
    "qwen3_5_moe_text": {
        **COMMON,
        **ATTENTION,
        **GATED_DELTA,
        **EXPERTS["qwen3_next"],
        "linear_value_head_dim": 8,
        "head_dim": 24,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
        "max_position_embeddings": 512,
    },
}


def save_tiny_model(folder: Path, model_type: str, seed: int = 0, dtype: str = "float32", **overrides: Any) -> Path:
    """Save a random checkpoint of ``model_type`` with ``overrides`` of its base config into ``folder``."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **{**BASE_CONFIGS[model_type], **overrides})
    model = AutoModelForCausalLM.from_config(config)
    randomise(model)
    model.to(getattr(torch, dtype))
    model.save_pretrained(folder)
    return folder


def randomise(model: Any) -> None:
    """Give every parameter values that matter: norms away from one, biases away from zero, varied decays."""
    import torch

    generator = torch.Generator().manual_seed(torch.initial_seed() % 2**31)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("A_log"):
                parameter.copy_(noise * 0.7)
            elif name.endswith("dt_bias"):
                parameter.copy_(noise - 2.0)
            elif name.endswith(".D") or "norm" in name:
                parameter.copy_(1.0 + 0.3 * noise)
            elif parameter.ndim == 1:
                parameter.copy_(0.2 * noise)
            elif "conv1d" in name:
                parameter.copy_(0.4 * noise)
            else:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
