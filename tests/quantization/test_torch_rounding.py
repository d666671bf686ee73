"""GPTQ in torch rounds as it does in numpy; on a GPU, a whole quantisation gives nearly the same weights."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import hybridge
from hybridge.artifact.errors import EngineError
from hybridge.exporter.rounding.rounding import (
    E2M1,
    E4M3,
    Levels,
    Storable,
    e4m3_divisor,
    e4m3_scales,
    gptq_rounded,
    integer_levels,
    parts_to_try,
    powers_of_two,
    scales_as,
)
from hybridge.quantization.torch_rounding import gptq_rounded_in_torch
from tests.quantization.dequantized import dequantized
from tests.runtime.text.tokenizer_files import SENTENCES, byte_level_tokenizer
from tests.support.tiny_models import save_tiny_model

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def gpu_or_cpu() -> list[object]:
    return ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", gpu_or_cpu())
@pytest.mark.parametrize(
    ("group", "levels", "storable"),
    [
        (32, integer_levels(4), scales_as(BFLOAT16)),
        (32, integer_levels(4, zero_points=True), scales_as(BFLOAT16)),
        (160, integer_levels(4, zero_points=True), scales_as(BFLOAT16)),
        (160, integer_levels(8), scales_as(np.dtype(np.float16))),
        (16, E2M1, e4m3_scales(e4m3_divisor(3.0))),
        (32, E2M1, powers_of_two),
        (160, E4M3, scales_as(BFLOAT16)),
    ],
    ids=["int4", "int4 zero points", "int4 zero points of rows", "int8", "nvfp4", "mxfp4", "fp8"],
)
def test_numbers_are_those_of_numpy(group: int, levels: Levels, storable: Storable, device: str) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_t(4, (63, 160)).astype(np.float32)
    weights[5] = 0
    inputs = rng.normal(size=(400, 160)) @ rng.normal(size=(160, 160))
    factor = np.linalg.cholesky(np.linalg.inv(inputs.T @ inputs)).T.astype(np.float32)
    expected = gptq_rounded(weights, group, levels, storable, parts_to_try(True, levels), factor)
    on_device = torch.from_numpy(factor).to(device)
    found = gptq_rounded_in_torch(weights, group, levels, storable, parts_to_try(True, levels), on_device)
    # A sum in another order may move a weight that is half way between two numbers.
    for one, two in zip(found, expected, strict=True):
        assert (one == two).mean() > 0.99
    products = [numbers * scales.repeat(group, 1) for numbers, scales in (found, expected)]
    lost = [float(np.linalg.norm((each - weights) @ inputs.T)) for each in products]
    assert lost[0] == pytest.approx(lost[1], rel=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{"method": "gptq"}, {"method": "awq"}, {"method": "gptq", "bits": 6.0}])
def test_a_gpu_quantises_as_the_cpu_does(tmp_path: Path, options: dict[str, object]) -> None:
    sizes = {"vocab_size": 410, "tie_word_embeddings": False}
    checkpoint = byte_level_tokenizer(save_tiny_model(tmp_path / "checkpoint", "nemotron_h", dtype="bfloat16", **sizes))
    text = tmp_path / "text.txt"
    text.write_text(" ".join(SENTENCES) * 4, encoding="utf-8")
    for device in ("cpu", "cuda"):
        hybridge.quantize(checkpoint, tmp_path / device, text=text, device=device, **options)
    one, two = dequantized(tmp_path / "cpu"), dequantized(tmp_path / "cuda")
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert (value.float() - two[name].float()).norm() <= 0.05 * value.float().norm(), name
    found = [hybridge.evaluate(checkpoint, tmp_path / each, text).mean_kl_divergence for each in ("cpu", "cuda")]
    assert found[1] == pytest.approx(found[0], rel=0.1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without a GPU")
def test_a_machine_without_a_gpu(tmp_path: Path) -> None:
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "llama")
    with pytest.raises(EngineError, match="device: expected a CUDA GPU that torch can use, found none: use the device"):
        hybridge.quantize(checkpoint, tmp_path / "out", method="gptq", device="cuda")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
