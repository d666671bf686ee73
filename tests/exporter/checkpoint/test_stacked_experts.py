"""Quantised experts in one tensor are read as what they mean, where they lie; bad ones are refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from hybridge.artifact.errors import HybridgeError
from hybridge.exporter.checkpoint import open_checkpoint
from hybridge.exporter.checkpoint.quantized.joined import joined_weight
from hybridge.exporter.checkpoint.quantized.scale_check import check_scales
from hybridge.exporter.checkpoint.shards import read_shards, tensors_of
from hybridge.verification.dequantized import meant_weights
from tests.exporter.checkpoint.test_quantized import meaning, written
from tests.support import quantized_checkpoints as formats
from tests.support.quantized_checkpoints import Arrays
from tests.support.stacked_experts import Pack, mxfp4_blocks, stacked

FUSED = "model.layers.0.mlp.experts.gate_up_proj"
MODULE = "model.layers.0.block_sparse_moe.input_linear.weight"
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}


def case(form: formats.Format, name: str, *shape: int) -> tuple[Pack, dict[str, Any], str, tuple[int, ...]]:
    return stacked(form), form.config, name, shape


CASES = {
    "w4 groups": case(formats.pack_quantized(16), MODULE, 3, 10, 48),
    "w4 groups, zero points": case(formats.pack_quantized(16, symmetric=False), MODULE, 5, 16, 32),
    "w4 channel": case(formats.pack_quantized(None), MODULE, 3, 10, 64),
    "int8 channel": case(formats.eight_bits("int", "channel"), MODULE, 3, 10, 20),
    "int8 channel, zero points": case(formats.eight_bits("int", "channel", symmetric=False), MODULE, 3, 10, 20),
    "fp8 tensor": case(formats.eight_bits("float", "tensor"), MODULE, 3, 10, 20),
    "fp8 blocks": case(formats.eight_bits("float", "block"), MODULE, 2, 40, 96),
    "nvfp4": case(formats.float4("nvfp4-pack-quantized"), MODULE, 3, 10, 48),
    "mxfp4 of compressed-tensors": case(formats.float4("mxfp4-pack-quantized"), MODULE, 1, 10, 64),
    "fp8 blocks, fused": case(formats.fp8_blocks(16, 32), FUSED, 3, 40, 96),
    "modelopt FP8": case(formats.modelopt("FP8"), FUSED, 3, 10, 20),
    "modelopt NVFP4": case(formats.modelopt("NVFP4"), FUSED, 3, 10, 48),
    "modelopt MXFP4": case(formats.modelopt("MXFP4"), FUSED, 3, 10, 64),
    "mxfp4 blocks": (mxfp4_blocks, MXFP4, FUSED, (3, 10, 64)),
    "mxfp4 blocks, down": (mxfp4_blocks, MXFP4, FUSED.replace("gate_up", "down"), (3, 7, 32)),
}


def values(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


@pytest.mark.parametrize("name", CASES)
def test_every_expert_means_what_its_matrix_means(name: str, tmp_path: Path) -> None:
    pack, config, weight_name, shape = CASES[name]
    tensors, meant = pack(weight_name, values(shape))
    folder = written(tmp_path / "c", tensors, config)
    checkpoint = open_checkpoint(folder)
    (weight,) = checkpoint.quantized.values()
    assert weight.name == weight_name and checkpoint.tensors[weight_name].shape == shape == weight.model_shape
    np.testing.assert_allclose(meaning(weight).reshape(shape), meant, rtol=1e-6)
    (reference,) = meant_weights(config, tensors_of(read_shards(folder)))
    assert (reference.name, reference.shape) == (weight_name, shape)
    np.testing.assert_allclose(reference.floats(), meant, rtol=1e-6)
    check_scales([weight], threading.Event())
    # Numbers that lie in the file as the graph has them are not copied.
    assert (weight.values.stored is not None) == (name != "mxfp4 blocks" and not name.startswith("w4"))


def test_gpt_oss_blocks_are_those_of_transformers(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    blocks = generator.integers(0, 256, (3, 14, 2, 16), np.uint8)
    scales = generator.integers(100, 150, (3, 14, 2), np.uint8)
    oracle = convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32)
    rows = oracle.transpose(1, 2).numpy()  # the model multiplies with the transpose
    expected = np.concatenate([rows[:, ::2], rows[:, 1::2]], axis=1)  # the model reads gates from even columns
    folder = written(tmp_path / "c", {f"{FUSED}_blocks": blocks, f"{FUSED}_scales": scales}, MXFP4)
    (weight,) = open_checkpoint(folder).quantized.values()
    np.testing.assert_array_equal(meaning(weight).reshape(expected.shape), expected)
    (reference,) = meant_weights(MXFP4, tensors_of(read_shards(folder)))
    np.testing.assert_array_equal(reference.floats(), expected)


def test_experts_that_lie_one_after_another_are_not_copied(tmp_path: Path) -> None:
    form, meant = formats.float4("nvfp4-pack-quantized"), []
    tensors: Arrays = {}
    for expert, matrix in enumerate(values((4, 6, 32))):
        packed, numbers = form.pack(f"model.layers.0.mlp.experts.{expert}.up_proj", matrix)
        tensors |= {name: array for name, array in packed.items() if "input" not in name}
        meant.append(numbers)
    # safetensors sorts by alignment and name: the packed numbers of all experts follow each other.
    weights = list(open_checkpoint(written(tmp_path / "c", tensors, form.config)).quantized.values())
    joined = joined_weight("experts.up", weights)
    np.testing.assert_allclose(meaning(joined), np.concatenate(meant), rtol=1e-6)
    apart = joined_weight("experts.up", [weights[0], weights[2]])
    assert apart.values.stored is None
    np.testing.assert_allclose(meaning(apart), np.concatenate([meant[0], meant[2]]), rtol=1e-6)
    moved = [
        replace(weight, values=replace(weight.values, stored=None, blocks=weight.values.pieces)) for weight in weights
    ]
    assert joined_weight("experts.up", moved).values.stored is None


def _set(name: str, index: tuple[int, ...], value: float) -> Callable[[Arrays], None]:
    def damage(tensors: Arrays) -> None:
        tensors[name] = tensors[name].copy()
        tensors[name][index] = value

    return damage


def _shape(name: str, *shape: int) -> Callable[[Arrays], None]:
    def damage(tensors: Arrays) -> None:
        tensors[name] = np.resize(tensors[name], shape)

    return damage


X, Y = MODULE.removesuffix(".weight"), FUSED
BAD: dict[str, tuple[str, Callable[[Arrays], Any], str]] = {
    "NaN scale": ("w4 groups", _set(f"{X}.weight_scale", (1, 2, 0), np.nan), r"holds nan at index \[1, 2, 0\]"),
    "zero scale": ("fp8 blocks, fused", _set(f"{Y}_scale_inv", (2, 0, 1), 0), r"holds 0.0 at index \[2, 0, 1\]"),
    "infinite scale": ("int8 channel", _set(f"{X}.weight_scale", (0, 0, 0), np.inf), "holds inf"),
    "zero e4m3 scale": ("modelopt NVFP4", _set(f"{Y}_weight_scale", (0, 1, 1), 0), "holds 0.0"),
    "NaN exponent": ("mxfp4 blocks", _set(f"{Y}_scales", (0, 1, 1), 255), "found NaN"),
    "scales of fewer experts": ("int8 channel", _shape(f"{X}.weight_scale", 2, 10, 1), r"expected 3 experts, found"),
    "scales of fewer rows": ("nvfp4", _shape(f"{X}.weight_scale", 3, 9, 3), r"expected shape \[10, 3\] by the quant"),
    "scales of fewer blocks": ("fp8 blocks, fused", _shape(f"{Y}_scale_inv", 3, 2, 3), r"expected shape \[3, 3\] of"),
    "another packing": ("w4 groups", _shape(f"{X}.weight_packed", 3, 10, 5), r"expected shape \[10, 6\]"),
    "another shape": ("w4 groups", _set(f"{X}.weight_shape", (1,), 11), r"weight_shape: expected \[10, columns\]"),
    "blocks of 8 bytes": ("mxfp4 blocks", _shape(f"{Y}_blocks", 3, 10, 4, 8), "expected .experts, rows, blocks, 16."),
    "no scales": ("mxfp4 blocks", lambda tensors: tensors.pop(f"{Y}_scales"), f"expected the tensor {Y}_scales"),
    "odd rows": ("mxfp4 blocks, down", lambda tensors: _renamed(tensors), "expected an even number of rows, found 7"),
    "columns of groups": ("w4 groups", _set(f"{X}.weight_shape", (2,), 44), "divides its 44 columns"),
}


def _renamed(tensors: Arrays) -> None:
    for name in list(tensors):
        tensors[name.replace("down", "gate_up")] = tensors.pop(name)


@pytest.mark.parametrize("name", BAD)
def test_contradictions_are_one_sentence(name: str, tmp_path: Path) -> None:
    source, damage, words = BAD[name]
    pack, config, weight_name, shape = CASES[source]
    tensors, _ = pack(weight_name, values(shape))
    damage(tensors)
    with pytest.raises(HybridgeError, match=words) as caught:
        checkpoint = open_checkpoint(written(tmp_path / "c", tensors, config))
        check_scales(checkpoint.quantized.values(), threading.Event())
    assert "\n" not in str(caught.value)


def test_columns_out_of_range_and_modules_that_do_not_exist(tmp_path: Path) -> None:
    form = formats.pack_quantized(16, ordered=True)
    tensors, _ = stacked(form)(MODULE, values((2, 4, 32)))
    tensors[f"{X}.weight_g_idx"][1, 3] = 9
    with pytest.raises(HybridgeError, match="expected groups from 0 to 1, found 9"):
        open_checkpoint(written(tmp_path / "a", tensors, form.config))
    tensors, _ = mxfp4_blocks(FUSED, values((2, 4, 32)))
    with pytest.raises(HybridgeError, match=r"expected modules of the checkpoint, found 'model.layers.7.mlp'"):
        open_checkpoint(written(tmp_path / "b", tensors, {**MXFP4, "modules_to_not_convert": ["model.layers.7.mlp"]}))


def test_a_forged_number_of_experts_is_refused_at_once(tmp_path: Path) -> None:
    tensors = {FUSED: np.zeros((70000, 1, 1), np.int8), f"{FUSED}_weight_scale": np.ones((70000, 1), np.float32)}
    folder = written(tmp_path / "c", tensors, {"quant_method": "modelopt", "quant_algo": "W8A8_SQ_PER_CHANNEL"})
    assert load_file(folder / "model.safetensors")
    with pytest.raises(HybridgeError, match="expected at most 4096 experts"):
        open_checkpoint(folder)
