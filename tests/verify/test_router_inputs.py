"""In 16 bits a near tie of two experts may fall to the other one: routers are then compared for the same inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hybridge.artifact.config import read_config
from hybridge.artifact.onnx_file import read_onnx
from hybridge.artifact.path_kind import MODEL_FILE
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.verification.compare import compared
from hybridge.verification.expected import Expected
from hybridge.verification.observation import Observation
from hybridge.verification.options import VerifyOptions
from hybridge.verification.reference import Reference, ReferenceRun
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
# One token's hidden state is small beside the others': rounding alone is 2 to 10 % of its logits.
CANCELLING = {"qwen3_moe": (3, 5)}


def exported(folder: Path, checkpoint: Path, layout: str) -> Path:
    export_checkpoint(checkpoint, folder, ExportOptions(max_batch_size=3, max_seq_len=64, layout=layout))
    return folder


def saved(folder: Path, family: str, seed: int, dtype: str = "bfloat16") -> Path:
    return save_tiny_model(folder, family, seed=seed, dtype=dtype, **random_model(family, seed).overrides)


# Among these are models of which a token's experts differ in 16 bits, and models of which none does.
@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_moe"])
@pytest.mark.parametrize("layout", ["dense", "paged"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_random_models_in_16_bits(family: str, layout: str, dtype: str, tmp_path: Path) -> None:
    for seed in sorted({*range(12)} - {*CANCELLING.get(family, ())}):
        checkpoint = saved(tmp_path / f"checkpoint{seed}", family, seed, dtype)
        artifact = exported(tmp_path / f"out{seed}", checkpoint, layout)
        report = verify(checkpoint, artifact, replace(COMPARED, seed=seed))
        assert report.passed and report.computed_types == (dtype,), (seed, report.verdict())


@pytest.mark.slow
def test_the_verdict_tells_of_experts_that_differ(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path / "checkpoint", "gpt_oss", 0)
    report = verify(checkpoint, exported(tmp_path / "out", checkpoint, "dense"), COMPARED)
    routed = [c for c in report.comparisons if c.routed]
    assert report.passed and {c.layer for c in routed if c.item == "input"} == {0, 1}
    assert f"({len(routed)} of them with experts chosen by the artifact's router inputs)" in report.verdict()


def swapped_rows(weight: torch.Tensor) -> None:
    weight[:2] = weight[:2].flip(0)


def louder(weight: torch.Tensor) -> None:
    weight[::2] *= 1.3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("model.layers.1.mlp.router.weight", swapped_rows),
        ("model.layers.1.mlp.router.bias", swapped_rows),
        ("model.layers.1.mlp.experts.down_proj_bias", swapped_rows),
        ("model.layers.1.post_attention_layernorm.weight", louder),
    ],
)
@pytest.mark.parametrize("layout", ["dense", "paged"])
def test_a_wrong_choice_is_found(name: str, change: object, layout: str, tmp_path: Path) -> None:
    checkpoint = saved(tmp_path / "checkpoint", "gpt_oss", 0)
    wrong = saved(tmp_path / "wrong", "gpt_oss", 0)
    (file,) = wrong.glob("*.safetensors")
    tensors = load_file(file)
    change(tensors[name])  # type: ignore[operator]
    save_file(tensors, file, {"format": "pt"})
    report = verify(checkpoint, exported(tmp_path / "out", wrong, layout), COMPARED)
    assert report.failing_place == "layer 1", report.verdict()


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
    """A run whose only layer differs from ``found``, and one with the artifact's router inputs that may not."""

    def __init__(self, found: np.ndarray, router_input: np.ndarray) -> None:
        self.found, self.router_input = found, router_input

    def run(self, observation: Observation) -> ReferenceRun:
        return ReferenceRun(self.found, self.found, (self.found + 1,), {})

    def with_router_inputs(self, observation: Observation) -> ReferenceRun:
        return ReferenceRun(self.found, self.found, (self.found,), {}, {"layers.0.router": self.router_input})


@pytest.mark.parametrize("change", [0.0, 1.0])
def test_the_inputs_of_routers_are_compared_too(change: float, artifacts: ArtifactCache) -> None:
    x = np.ones((2, 3), np.float32)
    config = artifacts.get("llama", "float32", {"num_hidden_layers": 2}).config
    observed = Observation("decode", 0, 2, x[-1], {}, (x,), x, {"layers.0.router": x + change})
    found = {c.item: c for c in compared("torch", observed, Runs(x, x), config, 1e-2)}
    assert found["hidden"].passed and all(c.routed for c in found.values())
    assert found["input"].layer == 0 and found["input"].passed == (change == 0.0)
