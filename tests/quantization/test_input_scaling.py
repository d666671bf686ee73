"""Scales of inputs leave the function of a model as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hybridge.exporter.options import ExportOptions
from hybridge.exporter.plan import open_plan
from hybridge.quantization.folding import folded, merged
from hybridge.quantization.input_scaling import ScalableInput, scalable_inputs
from hybridge.quantization.scaled import TensorScale
from tests.support.effort import sample
from tests.support.tiny_models import BASE_CONFIGS, EXPERTS, save_tiny_model

WITH_EXPERTS = ("nemotron_h experts", "qwen3_next experts", "granitemoehybrid experts")
ON_PUSH = ("nemotron_h experts", "qwen3_next", "recurrent_gemma")


def logits(folder: Path) -> torch.Tensor:
    """Of some tokens, in float64 except for the norms, which transformers computes in float32."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    tokens = torch.randint(97, (2, 21), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(tokens, use_cache=False).logits


def scaled_copy(checkpoint: Path, target: Path, groups: list[ScalableInput]) -> Path:
    """The checkpoint in float64, its inputs scaled by random factors."""
    rng = np.random.default_rng(0)
    tensors = {name: value.double() for name, value in load_file(checkpoint / "model.safetensors").items()}
    scales: dict[str, TensorScale] = {}
    for group in groups:
        found = np.exp(rng.uniform(-1.5, 1.5, len(tensors[group.producer])))
        scales = merged(scales, folded(group, found))
    for name, scale in scales.items():
        values = scale.applied(tensors[name].numpy(), slice(None))
        assert not np.array_equal(values, tensors[name].numpy())
        tensors[name] = torch.from_numpy(values)
    target.mkdir()
    (target / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


@pytest.mark.parametrize("family", sample([*BASE_CONFIGS, *WITH_EXPERTS], on_push=ON_PUSH))
def test_the_function_stays(tmp_path: Path, family: str) -> None:
    model_type = family.split()[0]
    extra = EXPERTS[model_type] if "experts" in family else {}
    checkpoint = save_tiny_model(tmp_path / "checkpoint", model_type, dtype="float32", **extra)
    plan = open_plan(checkpoint, ExportOptions(kernels="optional"))[1]
    groups = scalable_inputs(plan.decoder, plan.parameters)
    layers = len(plan.decoder.layers)
    assert {group.layer for group in groups} == set(range(layers))
    same = scaled_copy(checkpoint, tmp_path / "scaled", groups)
    before, after = logits(checkpoint), logits(same)
    assert before.std() > 1e-3
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4 * float(before.std()))
