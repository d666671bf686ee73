"""The exports that prove the families end to end: families, types of checkpoints, compute types and state types."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.exporter.options import OPTIONAL
from tests.support.artifacts import ArtifactCache, Exported
from tests.support.tiny_models import EXPERTS


@dataclass(frozen=True)
class ExportCase:
    """A checkpoint of ``stored`` type and the options of its export."""

    model_type: str
    stored: str
    overrides: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)

    def get(self, artifacts: ArtifactCache) -> Exported:
        return artifacts.get(self.model_type, self.stored, self.overrides, **self.options)

    @property
    def compute(self) -> DType:
        return self.options.get("dtype", DType(self.stored))


CASES: dict[str, ExportCase] = {
    "nemotron_h bf16 as fp16": ExportCase(
        "nemotron_h", "bfloat16", {"hybrid_override_pattern": "M*-M"}, {"dtype": DType.FLOAT16}
    ),
    "nemotron_h copied": ExportCase(
        "nemotron_h",
        "float32",
        {"hybrid_override_pattern": "M*-M", "time_step_limit": [0.02, 0.3]},
        {"weights": "copy"},
    ),
    "bamba fp32": ExportCase("bamba", "float32", {"num_hidden_layers": 2, "attn_layer_indices": [1]}),
    "granitemoehybrid bf16": ExportCase(
        "granitemoehybrid",
        "bfloat16",
        {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"], "position_embedding_type": "rope"},
    ),
    "mamba2 fp16 states": ExportCase(
        "mamba2",
        "float16",
        {"num_hidden_layers": 2, "tie_word_embeddings": True},
        {"state_dtype": DType.FLOAT16},
    ),
    "llama bf16 as fp32, all logits": ExportCase(
        "llama", "bfloat16", {"num_hidden_layers": 2}, {"dtype": DType.FLOAT32, "all_logits": True}
    ),
    "qwen3 fp32, window": ExportCase(
        "qwen3",
        "float32",
        {"num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3_next experts bf16 as fp16": ExportCase(
        "qwen3_next",
        "bfloat16",
        {**EXPERTS["qwen3_next"], "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
        {"dtype": DType.FLOAT16},
    ),
    "nemotron_h bf16 of odd sizes": ExportCase(
        "nemotron_h",
        "bfloat16",
        {"hybrid_override_pattern": "M*", "mamba_head_dim": 12, "ssm_state_size": 20},
        {"dtype": DType.FLOAT32, "kernels": OPTIONAL},
    ),
    "qwen3_5_text fp32 of odd sizes": ExportCase(
        "qwen3_5_text",
        "float32",
        {
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_key_head_dim": 12,
            "linear_value_head_dim": 10,
        },
        {"kernels": OPTIONAL},
    ),
    "olmo_hybrid fp32": ExportCase(
        "olmo_hybrid",
        "float32",
        {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    ),
}
# On push, and all in `make test-all`: the others' layers and types are among these.
ON_PUSH = tuple(set(CASES) - {"bamba fp32", "olmo_hybrid fp32", "nemotron_h bf16 of odd sizes"})


def case_params(on_push: Collection[str] = ON_PUSH) -> list[Any]:
    """The cases to parametrize a test with, by name."""
    slow = pytest.mark.slow
    return [pytest.param(case, id=name, marks=[] if name in on_push else slow) for name, case in CASES.items()]
