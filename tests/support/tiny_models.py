"""Tiny random checkpoints of every supported family, saved by transformers. Sizes are odd on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.tiny_configs.attention import ATTENTION_CONFIGS
from tests.support.tiny_configs.linear_attention import LINEAR_ATTENTION_CONFIGS, QWEN_EXPERTS
from tests.support.tiny_configs.mamba import MAMBA_CONFIGS
from tests.support.tiny_configs.near_llama import NEAR_LLAMA, NEAR_LLAMA_CONFIGS
from tests.support.versions import skip_without_family

BASE_CONFIGS: dict[str, dict[str, Any]] = {
    **MAMBA_CONFIGS,
    **ATTENTION_CONFIGS,
    **NEAR_LLAMA_CONFIGS,
    **LINEAR_ATTENTION_CONFIGS,
}
# Experts for the families whose base has none, as their configs spell them.
EXPERTS: dict[str, dict[str, Any]] = {
    "qwen3_next": QWEN_EXPERTS,
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
        *("gemma3_text", "lfm2_moe", "lfm3", "ministral", "mistral", "olmo2", "olmo3", "phi3", "qwen2"),
        *("cwm", "ernie4_5", "exaone4", "glm4", "gpt_oss", "internlm3", "mixtral", "qwen3_moe", "smollm3"),
        *NEAR_LLAMA,
    }
)


def save_tiny_model(folder: Path, model_type: str, seed: int = 0, dtype: str = "float32", **overrides: Any) -> Path:
    """Save a random checkpoint of ``model_type`` with ``overrides`` of its base config into ``folder``.

    Skips the test where transformers is too old for it.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    skip_without_family(model_type)
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
            if name.endswith("balancing_biases"):
                # transformers sets the last one to -1 whenever it loads the model.
                buffer[:-1] = 0.3 * torch.randn(len(buffer) - 1, generator=generator) - 1.0
