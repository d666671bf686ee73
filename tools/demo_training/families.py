"""One row per model family that the demo trainer can build."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from demo_training.delta_rule import parallel_chunks
from demo_training.errors import TrainingInputError


@dataclass(frozen=True)
class SpecialTokenIds:
    """Vocabulary facts that a model config repeats."""

    vocab_size: int
    pad: int
    bos: int
    eos: int


@dataclass(frozen=True)
class Family:
    """How to make one family's model.

    config_from_tokens: builds the transformers config; keyword overrides replace single fields.
    fp32_suffixes: parameters whose name ends so stay float32 in the saved file.
    prepare: changes a freshly built or loaded model so that it computes what its config states.
    initialise: replaces initial values of a freshly built model.
    training: entered while a model is trained; may put faster forms of the same functions in place.
    """

    config_from_tokens: Callable[..., Any]
    fp32_suffixes: tuple[str, ...]
    prepare: Callable[[Any], None]
    initialise: Callable[[Any], None]
    training: Callable[[], AbstractContextManager[Any]] = nullcontext


def nemotron_h_config(tokens: SpecialTokenIds, **overrides: Any) -> Any:
    """About 3.4 M parameters: five Mamba2, two attention (6 heads over 2) and five MLP layers."""
    from transformers import NemotronHConfig

    fields: dict[str, Any] = {
        "vocab_size": tokens.vocab_size,
        "pad_token_id": tokens.pad,
        "bos_token_id": tokens.bos,
        "eos_token_id": tokens.eos,
        "hidden_size": 192,
        "hybrid_override_pattern": "M-M-M*-M-M*-",
        "intermediate_size": 576,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "mamba_num_heads": 12,
        "mamba_head_dim": 32,
        "ssm_state_size": 64,
        "n_groups": 2,
        "chunk_size": 64,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    }
    return NemotronHConfig(**(fields | overrides))


def use_time_step_limit(model: Any) -> None:
    """Clamp dt at `config.time_step_limit`, as the Mamba2 paper's kernels do.

    The PyTorch path of transformers clamps at `time_step_min`, which is meant for the initial
    dt_bias only; its one-token path does not clamp at all.
    """
    limit = tuple(float(bound) for bound in model.config.time_step_limit)
    for module in model.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = limit


def qwen3_next_config(tokens: SpecialTokenIds, **overrides: Any) -> Any:
    """About 1.4 M parameters: four gated delta net layers (4 value heads over 2 key heads) and two gated attention
    layers, each followed by an MLP; no experts."""
    from transformers import Qwen3NextConfig

    fields: dict[str, Any] = {
        "vocab_size": tokens.vocab_size,
        "pad_token_id": tokens.pad,
        "bos_token_id": tokens.bos,
        "eos_token_id": tokens.eos,
        "hidden_size": 128,
        "num_hidden_layers": 6,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
        "intermediate_size": 320,
        "num_experts": 0,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "max_position_embeddings": 8192,
        "initializer_range": 0.05,
        "tie_word_embeddings": True,
    }
    return Qwen3NextConfig(**(fields | overrides))


def qwen3_next_64m_config(tokens: SpecialTokenIds, **overrides: Any) -> Any:
    """About 64 M parameters with a vocabulary of 8,192: eight gated delta net and four gated attention layers. Rows are
    multiples of 256, as llama.cpp's formats require."""
    fields: dict[str, Any] = {
        "hidden_size": 512,
        "num_hidden_layers": 12,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 4,
        "intermediate_size": 2304,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
    }
    return qwen3_next_config(tokens, **(fields | overrides))


def spread_time_steps(model: Any) -> None:
    """dt_bias such that softplus of it is between 0.001 and 0.1, evenly in its logarithm (as Mamba2 begins).

    transformers begins with ones, at which most heads forget within one token.
    """
    import torch

    for name, parameter in model.named_parameters():
        if name.endswith(".dt_bias"):
            time_step = torch.logspace(-3, -1, parameter.numel(), device=parameter.device)
            parameter.data = time_step + torch.log(-torch.expm1(-time_step))


def nothing(_model: Any) -> None:
    """For a family whose models need no change."""


FAMILIES: dict[str, Family] = {
    "nemotron_h": Family(
        config_from_tokens=nemotron_h_config,
        fp32_suffixes=(".A_log", ".D", ".dt_bias"),
        prepare=use_time_step_limit,
        initialise=nothing,
    ),
    "qwen3_next": Family(
        config_from_tokens=qwen3_next_config,
        fp32_suffixes=(".A_log", ".dt_bias"),
        prepare=nothing,
        initialise=spread_time_steps,
        training=parallel_chunks,
    ),
}
FAMILIES["qwen3_next_64m"] = replace(FAMILIES["qwen3_next"], config_from_tokens=qwen3_next_64m_config)


def family_named(name: str) -> Family:
    """The row for `name`; TrainingInputError lists the known names."""
    if name not in FAMILIES:
        raise TrainingInputError(
            f"expected a family out of {sorted(FAMILIES)}, found {name!r}; add a row to FAMILIES to train it"
        )
    return FAMILIES[name]
