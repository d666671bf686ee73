"""In 16 bits rounding grows from layer to layer, and a near tie of two experts may fall to the other one.

Results beyond the tolerance are compared layer by layer, for the artifact's own inputs of layers and routers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hybridge.artifact.config import read_config
from hybridge.artifact.onnx_file import read_onnx
from hybridge.artifact.path_kind import MODEL_FILE
from hybridge.artifact.progress import NoProgress
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.verification.engine_runs import EngineRuns, Products
from hybridge.verification.expected import Expected
from hybridge.verification.observation import Observation
from hybridge.verification.options import VerifyOptions
from hybridge.verification.reference import Reference, ReferenceRun
from hybridge.verification.report import Comparison
from hybridge.verification.router_inputs import router_inputs
from hybridge.verification.verifier import verify
from tests.support.artifacts import ArtifactCache
from tests.support.random_models import random_model
from tests.support.tiny_models import EXPERTS, save_tiny_model

COMPARED = VerifyOptions(engine="torch", prompt_lengths=(1, 7, 33), decode_steps=4)
FAMILIES = (
    *("bailing_hybrid", "gpt_oss", "jamba", "kimi_linear", "lfm2_moe", "minimax", "qwen3_5_moe_text", "qwen3_moe"),
    *EXPERTS,
)
# Of the whole model, rounding changes most random models of these by more than the tolerance.
GROWING = ("jamba", "kimi_linear", "bailing_hybrid", "lfm2_moe", "qwen3_5_moe_text", "qwen3_next", "zamba")


def exported(folder: Path, checkpoint: Path, layout: str) -> Path:
    export_checkpoint(checkpoint, folder, ExportOptions(max_batch_size=3, max_seq_len=64, layout=layout))
    return folder


def saved(folder: Path, family: str, seed: int, dtype: str = "bfloat16") -> Path:
    return save_tiny_model(folder, family, seed=seed, dtype=dtype, **random_model(family, seed).overrides)


# Among these are models of which a token's experts differ in 16 bits, models of which none does, and single tokens of
# which rounding changes a layer's output by more than the tolerance: what a norm reads there nearly cancels.
@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_moe", *GROWING])
@pytest.mark.parametrize("layout", ["dense", "paged"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_random_models_in_16_bits(family: str, layout: str, dtype: str, tmp_path: Path) -> None:
    for seed in range(12):
        checkpoint = saved(tmp_path / f"checkpoint{seed}", family, seed, dtype)
        artifact = exported(tmp_path / f"out{seed}", checkpoint, layout)
        report = verify(checkpoint, artifact, replace(COMPARED, seed=seed))
        assert report.passed and report.computed_types == (dtype,), (seed, report.verdict())


@pytest.mark.slow
def test_the_verdict_tells_of_own_inputs(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path / "checkpoint", "gpt_oss", 0)
    report = verify(checkpoint, exported(tmp_path / "out", checkpoint, "dense"), COMPARED)
    own = [c for c in report.comparisons if c.own_inputs]
    assert report.passed and {c.layer for c in own if c.item == "input"} == {0, 1}
    assert f"({len(own)} of them layer by layer, for the artifact's own inputs)" in report.verdict()


def swapped_rows(weight: torch.Tensor) -> None:
    weight[:2] = weight[:2].flip(0)


def louder(weight: torch.Tensor) -> None:
    weight[::2] *= 1.3


FAULTS = [
    ("gpt_oss", "model.layers.1.mlp.router.weight", swapped_rows),
    ("gpt_oss", "model.layers.1.mlp.router.bias", swapped_rows),
    ("gpt_oss", "model.layers.1.mlp.experts.down_proj_bias", swapped_rows),
    ("gpt_oss", "model.layers.1.post_attention_layernorm.weight", louder),
    ("qwen3_next", "model.layers.1.mlp.gate.weight", swapped_rows),
    ("qwen3_next", "model.layers.1.linear_attn.norm.weight", louder),
    ("kimi_linear", "model.layers.2.block_sparse_moe.gate.weight", swapped_rows),
    ("zamba", "model.layers.1.mamba_decoder.mamba.D", louder),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name", "change"), FAULTS)
@pytest.mark.parametrize("layout", ["dense", "paged"])
def test_a_fault_is_found(family: str, name: str, change: object, layout: str, tmp_path: Path) -> None:
    """Of models whose right results are beyond the tolerance of the whole model."""
    checkpoint = saved(tmp_path / "checkpoint", family, 0)
    wrong = saved(tmp_path / "wrong", family, 0)
    (file,) = wrong.glob("*.safetensors")
    tensors = load_file(file)
    change(tensors[name])  # type: ignore[operator]
    save_file(tensors, file, {"format": "pt"})
    report = verify(checkpoint, exported(tmp_path / "out", wrong, layout), COMPARED)
    assert report.failing_place == f"layer {name.split('.')[2]}", report.verdict()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_all_routers_are_found(family: str, tmp_path: Path) -> None:
    checkpoint = save_tiny_model(tmp_path / "checkpoint", family, **EXPERTS.get(family, {}))
    artifact = exported(tmp_path / "out", checkpoint, "paged")
    names, config = list(router_inputs(artifact)), read_config(artifact)
    nodes = read_onnx(artifact, MODEL_FILE).model.graph.node
    assert len(names) == sum(node.op_type == "routed_experts" for node in nodes) > 0
    reference = Reference(checkpoint, config)
    assert reference.use_routers(names)
    sizes = (config.hidden_size,) * len(names)
    given = {name: np.ones((5, size), np.float32) for name, size in zip(names, sizes, strict=True)}
    run = reference.run(np.arange(5), products=given)
    assert [run.inputs[name].shape for name in names] == [(5, size) for size in sizes]


class Runs(Expected):
    """Runs whose only layer differs from ``found``, and with the artifact's inputs those of ``own``."""

    def __init__(self, found: np.ndarray, own: ReferenceRun, rounded: ReferenceRun | None = None) -> None:
        self.found, self.own, self.rounded = found, own, rounded

    def run(self, observation: Observation) -> ReferenceRun:
        return ReferenceRun(self.found, self.found, (self.found + 1,), {})

    def with_own_inputs(self, observation: Observation, rounded: bool = False) -> ReferenceRun | None:
        return self.rounded if rounded else self.own


X = np.ones((2, 3), np.float32)
OWN = ReferenceRun(X, X, (X,), {}, {"layers.0.router": X})


def found(artifacts: ArtifactCache, expected: Runs, router: np.ndarray, second: np.ndarray = X) -> list[Comparison]:
    """Comparisons of an artifact whose logits are ones in the first pass and ``second`` in the other one."""
    config = artifacts.get("llama", "float32", {"num_hidden_layers": 2}).config

    def observations(shown: Products) -> Iterator[Observation]:
        if shown is None:
            yield Observation("decode", 0, 2, X[-1], {})
        else:
            yield Observation("decode", 0, 2, second[-1], {}, (X,), X, {"layers.0.router": router})

    expected.found = X + 1
    runs = EngineRuns("torch", observations, expected, config, 1e-2, None, {}, NoProgress())
    return list(runs.comparisons())


@pytest.mark.parametrize("change", [0.0, 1.0])
def test_the_inputs_of_routers_are_compared_too(change: float, artifacts: ArtifactCache) -> None:
    by_item = {c.item: c for c in found(artifacts, Runs(X, OWN), X + change)}
    assert by_item["hidden"].passed and all(c.own_inputs for c in by_item.values())
    assert by_item["input"].layer == 0 and by_item["input"].passed == (change == 0.0)


@pytest.mark.parametrize(("rounding", "passes"), [(0.0, False), (0.2, False), (0.6, True)])
def test_rounding_of_the_reference_explains_about_as_much(
    rounding: float, passes: bool, artifacts: ArtifactCache
) -> None:
    other = ReferenceRun(X, X, (X,), {}, {"layers.0.router": X * (1 + rounding)})
    by_item = {c.item: c for c in found(artifacts, Runs(X, OWN, other), X * 2)}
    assert by_item["input"].passed == by_item["input"].by_rounding == passes
    assert by_item["hidden"].passed and not by_item["hidden"].by_rounding


def test_other_results_in_the_second_pass_excuse_nothing(artifacts: ArtifactCache) -> None:
    (comparison,) = found(artifacts, Runs(X, OWN), X, second=X * 1.1)
    assert comparison.item == "logits" and not comparison.passed and not comparison.own_inputs
