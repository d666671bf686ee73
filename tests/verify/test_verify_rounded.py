"""Artifacts that round inputs of products: each layer and each product is compared for the artifact's own input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hybridge.artifact.dtypes import DType
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.verification.options import VerifyOptions
from hybridge.verification.rounded_inputs import FP4, FP8, INT8, Rounding
from hybridge.verification.verifier import verify
from tests.support.quantized_checkpoints import eight_bits, float4, save_quantized
from tests.verify.damaged_artifact import DamagedArtifact

INPUTS = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
NVFP4_INPUTS = {**INPUTS, "num_bits": 4, "strategy": "tensor_group", "dynamic": "local", "group_size": 16}
WIDE = {"num_hidden_layers": 2, "intermediate_size": 96}
ENDS = {"dense": (5, 40), "paged": (5, 12)}


@pytest.fixture(scope="module", params=["dense", pytest.param("paged", marks=pytest.mark.slow)])
def deep(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, VerifyOptions]:
    """A checkpoint of 8 layers in fp8, its artifact, and how to verify it."""
    folder, form = tmp_path_factory.mktemp("deep"), eight_bits("float", "channel", inputs=INPUTS)
    checkpoint, _ = save_quantized(folder, "llama", form, "float32", num_hidden_layers=8, intermediate_size=96)
    options = ExportOptions(max_batch_size=2, max_seq_len=64, dtype=DType.FLOAT32, layout=request.param, weights="copy")
    export_checkpoint(checkpoint, folder / "out", options)
    compared = VerifyOptions(engine="onnxruntime", prompt_lengths=ENDS[request.param], decode_steps=3)
    return checkpoint, folder / "out", compared


@pytest.mark.slow
def test_differences_do_not_grow_from_layer_to_layer(deep: tuple[Path, Path, VerifyOptions]) -> None:
    report = verify(*deep)
    assert report.passed and report.tolerance == 1e-4, report.verdict()
    assert report.verdict().endswith("; layers and rounded products compared for the artifact's own inputs")
    # Every scenario shows every layer.
    shown = {(c.scenario, c.layer) for c in report.comparisons if c.item == "hidden"}
    assert shown == {(c.scenario, n) for c in report.comparisons if c.item == "logits" for n in range(8)}


@pytest.mark.parametrize("layout", ["dense", pytest.param("paged", marks=pytest.mark.slow)])
def test_an_engine_in_sixteen_bits_is_no_further_away_than_without_rounding(layout: str, tmp_path: Path) -> None:
    """A difference of 1 in 256 that bfloat16 makes before an input is rounded to 4 bits becomes one of 1 in 4."""
    checkpoint, _ = save_quantized(tmp_path, "llama", float4("nvfp4-pack-quantized", NVFP4_INPUTS), **WIDE)
    options = ExportOptions(max_batch_size=2, max_seq_len=64, layout=layout, weights="copy")
    export_checkpoint(checkpoint, tmp_path / "out", options)
    report = verify(checkpoint, tmp_path / "out", VerifyOptions("torch", prompt_lengths=(5, 12), decode_steps=2))
    assert report.computed_types == ("bfloat16",)
    shown = {(c.item, c.layer) for c in report.comparisons}
    assert shown >= {("input", 0), ("input", 1), ("input", None), ("hidden", 1), ("logits", None)}
    assert max(c.error for c in report.comparisons) < 1e-2, report.verdict()


def scaled(index: int | tuple[int, ...], factor: float) -> Callable[[np.ndarray], None]:
    def change(values: np.ndarray) -> None:
        values[index] *= factor

    return change


@pytest.mark.parametrize(
    ("end", "change", "place"),
    [
        pytest.param("layers.5.self_attn.o_proj.weight_scale", scaled((7, 0), 1.05), "layer 5", marks=pytest.mark.slow),
        # The product after the norm is compared for the artifact's own input: only that input shows the fault.
        ("layers.0.input_layernorm.weight", scaled(3, 1.02), "layer 0"),
        pytest.param("model.norm.weight", scaled(3, 1.05), "head", marks=pytest.mark.slow),
    ],
)
def test_a_fault_in_one_layer_is_found(
    end: str, change: Callable[[np.ndarray], None], place: str, deep: tuple[Path, Path, VerifyOptions], tmp_path: Path
) -> None:
    checkpoint, artifact, options = deep
    damaged = DamagedArtifact(artifact, tmp_path / "damaged")
    damaged.weight(end, change)
    report = verify(checkpoint, damaged.write(), options)
    assert report.failing_place == place, report.verdict()
    # The input of later layers is the artifact's own: they agree.
    assert {c.layer for c in report.comparisons if not c.passed} <= {report.first_failing_layer, None}


@pytest.mark.parametrize(
    ("rounding", "ties", "others"),
    [
        (Rounding(INT8, None, 1.0), [0.5, -3.5, 126.5], [1.0, -3.0, 127.0]),
        (Rounding(FP8, None, 1.0), [17.0, -19.0, 432.0], [18.0, -18.0, 416.0]),
        (Rounding(FP4, 16, 1.0), [6.0, 2.5, 0.25, *[1.0] * 13], [6.0, 3.0, 0.5, *[1.0] * 13]),
    ],
)
def test_only_ties_are_swapped(rounding: Rounding, ties: list[float], others: list[float]) -> None:
    clear = [] if rounding.group else [3.0, 100.25]
    x = torch.tensor([*ties, *clear])
    nearest, swapped = rounding(x), rounding(x, ties_swapped=True)
    assert swapped.tolist() == [*others, *nearest[len(ties) :].tolist()]
    assert not torch.equal(nearest, swapped)
