"""Quantisation settings of published checkpoints: every list of modules is honoured, or refused by name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint import open_checkpoint
from hybridge.exporter.checkpoint.quantized.reader import LogicalTensors, logical_tensors, without_quantization
from hybridge.exporter.checkpoint.quantized.targets import matches
from hybridge.exporter.families.registry import decoder_config
from tools.published_configs import PUBLISHED
from tools.published_quantization import MINIMAX_M2_FP8, MODELOPT
from tools.sparse_checkpoint import Tensors, modelopt_tensors, write_sparse_checkpoint

LIGHTNING = "NVIDIA-Nemotron-3.5-Lightning-30B-A3B"
# Format -> quantised matrices with two experts a layer: of Mamba2 2, of attention 4, of two experts and a shared one 6.
FORMATS = {
    "NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": {"modelopt NVFP4": 2 * (23 - 6) + 6 * 23},
    "NVIDIA-Nemotron-3-Super-120B-A12B-FP8": {"modelopt FP8": 2 * 40 + 4 * 8 + (6 + 2) * 40},
    "NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": {"modelopt NVFP4": 2 * 40 + 4 * 8 + (6 + 2) * 40},
    f"{LIGHTNING}-NVFP4": {"modelopt FP8": 2 * 23, "modelopt W4A16_NVFP4": 4 * 23},
}
ATTENTION = "model.layers.{}.self_attn.q_proj"
EXPERT = "model.layers.{}.block_sparse_moe.experts.1.w1"
GATE = "model.layers.{}.block_sparse_moe.gate"


def minimax(algorithm: str, *modules: str, prefix: str = "") -> dict[str, TensorSlot]:
    """Tensors of 62 layers: those of ``modules`` as ModelOpt stores them, other matrices in bfloat16."""
    shape = 64, 256
    found: Tensors = {}
    for layer in range(62):
        for module in (ATTENTION, EXPERT, GATE):
            name = f"{prefix}{module.format(layer)}.weight"
            found |= modelopt_tensors(name, shape, algorithm) if module in modules else {name: (DType.BFLOAT16, shape)}
    return {name: TensorSlot(name, *tensor, Path("a.safetensors"), 0, 1) for name, tensor in found.items()}


def read(quantization: dict[str, Any], tensors: dict[str, TensorSlot]) -> LogicalTensors:
    return logical_tensors(without_quantization({}, quantization)[1], tensors)


@pytest.mark.parametrize("name", FORMATS)
def test_every_listed_module_is_honoured(name: str, tmp_path: Path) -> None:
    model = {**PUBLISHED[name.rpartition("-")[0]], "n_routed_experts": 2, "num_experts_per_tok": 1}
    write_sparse_checkpoint(tmp_path / "a", {**model, "n_group": 1, "topk_group": 1}, quantization=MODELOPT[name])
    checkpoint = open_checkpoint(tmp_path / "a")
    settings = MODELOPT[name]["quantization"]
    found = {each.removesuffix(".weight"): weight.format for each, weight in checkpoint.quantized.items()}
    assert Counter(found.values()) == FORMATS[name]
    assert not any(matches(module, settings.get("exclude_modules", ())) for module in found)
    for module, entry in settings.get("quantized_layers", {}).items():
        assert found[module] == f"modelopt {entry['quant_algo']}"
    assert any("keys and values in fp8" in note for note in checkpoint.notes)


def test_patterns_and_modules_of_minimax_m2_are_excluded() -> None:
    quantization = MODELOPT["MiniMax-M2.7-NVFP4"]
    found = read(quantization, minimax("NVFP4", EXPERT))
    assert len(found.quantized) == 62 and {weight.format for weight in found.quantized.values()} == {"modelopt NVFP4"}
    for module in (GATE, ATTENTION):
        with pytest.raises(CheckpointError, match=module.format(r"\d+")):
            read(quantization, minimax("NVFP4", module))


def test_blocks_of_minimax_m2_are_read() -> None:
    tensors = minimax("FP8", EXPERT)
    for layer in range(62):
        module = EXPERT.format(layer)
        del tensors[f"{module}.weight_scale"], tensors[f"{module}.input_scale"]
        scale = f"{module}.weight_scale_inv"
        tensors[scale] = TensorSlot(scale, DType.FLOAT32, (1, 2), Path("a.safetensors"), 0, 8)
    found = logical_tensors(MINIMAX_M2_FP8, tensors)
    assert {weight.format for weight in found.quantized.values()} == {"fp8 blocks of 128 x 128"}
    assert len(found.quantized) == 62


def test_types_that_no_engine_has_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"layers\.0\.self_attn\.q_proj: expected one of .*found 'MXFP8'"):
        read(MODELOPT["MiniMax-M3-NVFP4"], minimax("FP8", ATTENTION, prefix="language_model."))


@pytest.mark.parametrize("model_type", ["minimax_m2", "minimax_m3_vl"])
def test_other_families_with_such_settings_are_refused_by_name(model_type: str) -> None:
    with pytest.raises(UnsupportedError, match=f"unsupported model_type '{model_type}'"):
        decoder_config({"model_type": model_type})
