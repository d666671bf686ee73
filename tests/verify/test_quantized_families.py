"""Quantised weights and rounded inputs in every family: the artifact computes what the checkpoint says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.verification.options import VerifyOptions
from hybridge.verification.verifier import verify
from tests.support.quantized_checkpoints import eight_bits, float4, modelopt, pack_quantized, save_quantized
from tests.support.tiny_models import BASE_CONFIGS, EXPERTS

DYNAMIC = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
BY_GROUP = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "dynamic": "local"}
ODD = ("dt_proj", "adapter")  # matrices with an odd number of columns
TYPES = (DType.BFLOAT16, DType.FLOAT16)
CASES = {name: (name, dict[str, Any]()) for name in BASE_CONFIGS} | {
    f"{name}, experts": (name, EXPERTS[name]) for name in EXPERTS if name in BASE_CONFIGS
}
SIZES = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_hidden_layers": 2}
NVFP4 = {
    "compressed-tensors": float4("nvfp4-pack-quantized", {**BY_GROUP, "group_size": 16}),
    "modelopt": modelopt("NVFP4"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_family_has_weights_of_4_bits(name: str, tmp_path: Path) -> None:
    family, overrides = CASES[name]
    packed = pack_quantized(None, symmetric=False)
    form = replace(packed, chosen=lambda weight: packed.chosen(weight) and not any(part in weight for part in ODD))
    quantized, _ = save_quantized(tmp_path, family, form, dtype="float32", **overrides)
    export_checkpoint(quantized, tmp_path / "out", ExportOptions(dtype=DType.FLOAT32, max_seq_len=96))
    options = VerifyOptions(engine="torch", prompt_lengths=(5, 9), decode_steps=2)
    report = verify(quantized, tmp_path / "out", options)
    assert report.passed, report.verdict()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_family_rounds_to_e4m3(name: str, tmp_path: Path) -> None:
    family, overrides = CASES[name]
    form = eight_bits("float", "channel", inputs=DYNAMIC)
    quantized, _ = save_quantized(tmp_path, family, form, dtype="float32", **overrides)
    export_checkpoint(quantized, tmp_path / "out", ExportOptions(dtype=DType.FLOAT32, max_seq_len=96))
    options = VerifyOptions(engine="onnxruntime", prompt_lengths=(5, 9), decode_steps=2)
    report = verify(quantized, tmp_path / "out", options)
    assert report.passed, report.verdict()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("form", NVFP4)
def test_experts_round_to_e2m1_in_16_bits(form: str, dtype: DType, seed: int, tmp_path: Path) -> None:
    overrides = {**EXPERTS["qwen3_next"], **SIZES, "layer_types": ["linear_attention", "full_attention"]}
    quantized, _ = save_quantized(tmp_path, "qwen3_next", NVFP4[form], dtype="bfloat16", **overrides)
    export_checkpoint(quantized, tmp_path / "out", ExportOptions(dtype=dtype, max_seq_len=96))
    options = VerifyOptions(engine="torch", prompt_lengths=(5, 21), decode_steps=2, seed=seed)
    report = verify(quantized, tmp_path / "out", options)
    assert report.passed, report.verdict()
