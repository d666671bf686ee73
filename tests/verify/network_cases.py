"""Artifacts of every family whose sizes the plugins' kernels support, each with as few layers as hold all its kinds."""

from __future__ import annotations

from typing import Any

from tests.support.artifacts import ArtifactCache, Exported
from tests.support.tiny_models import BASE_CONFIGS, EXPERTS

HEADS = {"head_dim": 64}
# Families whose head size follows from these.
FEW_HEADS = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
WIDE = {**FEW_HEADS, "mamba_n_heads": 16}
TWO = {"num_hidden_layers": 2}
BOTH = {**TWO, "layer_types": ["linear_attention", "full_attention"]}
SIZES: dict[str, dict[str, Any]] = {
    "nemotron_h": {**EXPERTS["nemotron_h"], **HEADS, "hybrid_override_pattern": "M*E-M"},
    "bailing_hybrid": {**BOTH, "kv_lora_rank": 48, "qk_rope_head_dim": 16},
    "bamba": {**TWO, **WIDE, "attn_layer_indices": [1]},
    "falcon_h1": {**TWO, **HEADS},
    "granitemoehybrid": {**BOTH, **WIDE, **EXPERTS["granitemoehybrid"]},
    "kimi_linear": {**BOTH, "kv_lora_rank": 48, "qk_rope_head_dim": 16},
    "helium": {**TWO, **FEW_HEADS, **HEADS},
    "lfm2": {**TWO, **FEW_HEADS, "layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {**TWO, **FEW_HEADS, "layer_types": ["conv", "full_attention"]},
    "lfm3": {**TWO, **HEADS, "layer_types": ["conv", "full_attention", "sliding_attention"], "num_hidden_layers": 3},
    "gemma3_text": {**TWO, **HEADS, "layer_types": ["sliding_attention", "full_attention"]},
    "mamba": TWO,
    "mamba2": TWO,
    "falcon_mamba": TWO,
    "jamba": {**TWO, **HEADS, "attn_layer_period": 2},
    "minimax": {**BOTH, **HEADS},
    "olmo_hybrid": {**BOTH, **HEADS},
    "recurrent_gemma": {**FEW_HEADS, **TWO},
    "zamba": {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "n_mamba_heads": 2},
    "zamba2": {"hidden_size": 64, "num_attention_heads": 2, "n_mamba_heads": 8},
    "zaya": {**TWO, **HEADS, "layer_types": ["hybrid", "hybrid_sliding"]},
    "qwen3_next": {**BOTH, **HEADS, **EXPERTS["qwen3_next"]},
    "qwen3_5_text": {**BOTH, **HEADS},
    "qwen3_5_moe_text": {**BOTH, **HEADS},
}
ATTENTION_ALONE = tuple(family for family in BASE_CONFIGS if family not in SIZES or family in ("gemma3_text", "helium"))


def exported(artifacts: ArtifactCache, family: str, stored: str = "float32", **options: Any) -> Exported:
    """The artifact of a checkpoint of ``family``."""
    return artifacts.get(family, stored, SIZES.get(family, {**TWO, **HEADS}), **options)
