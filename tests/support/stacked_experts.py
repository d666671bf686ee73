"""Quantised checkpoints with the experts of a layer in one tensor."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from tests.support.quantized_checkpoints import Arrays, Format, edit_quantization, save_tensors
from tests.support.tiny_models import save_tiny_model

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
# Names of the tensors of one matrix, and what is added to X for those of all experts.
FUSED = {"weight": "", "weight_scale_inv": "_scale_inv", "weight_scale": "_weight_scale"}
FUSED |= {"weight_scale_2": "_weight_scale_2", "input_scale": "_input_scale"}
Pack = Callable[[str, np.ndarray], tuple[Arrays, np.ndarray]]


def stacked(form: Format) -> Pack:
    """Packs X or X.weight [experts, rows, columns] expert by expert, and stacks the tensors.

    Those of X are X and X_scale_inv, or X_weight_scale and others; those of X.weight X.weight_scale and others.
    """

    def pack(name: str, value: np.ndarray) -> tuple[Arrays, np.ndarray]:
        packed = [form.pack("x", matrix) for matrix in value.astype(np.float32)]
        is_module = name.endswith(".weight")
        arrays: Arrays = {}
        for key in packed[0][0]:
            last, whole = key.removeprefix("x."), np.stack([tensors[key] for tensors, _ in packed])
            if last == "weight_shape":
                whole = np.array(value.shape, np.int64)
            arrays[f"{name.removesuffix('.weight')}.{last}" if is_module else name + FUSED[last]] = whole
        return arrays, np.stack([meant for _, meant in packed])

    return pack


def mxfp4_blocks(name: str, value: np.ndarray) -> tuple[Arrays, np.ndarray]:
    """As gpt-oss stores experts: X_blocks and X_scales, with the rows of gate_up_proj in turns."""
    if name.endswith("gate_up_proj"):
        half = value.shape[1] // 2
        value = np.stack([value[:, :half], value[:, half:]], axis=2).reshape(value.shape)
    codes, exponents, meant = [], [], []
    for matrix in value.astype(np.float32):
        groups = matrix.reshape(len(matrix), -1, 32)
        powers = np.ceil(np.log2(np.abs(groups).max(2) / 6)) + 127
        numbers = _nearest_e2m1(groups / np.exp2(powers - 127)[..., None])
        codes.append((numbers[..., ::2] | numbers[..., 1::2] << 4).astype(np.uint8))
        exponents.append(powers.astype(np.uint8))
        meant.append((_E2M1[numbers] * np.exp2(powers - 127)[..., None]).reshape(matrix.shape))
    whole = np.stack(meant).astype(np.float32)
    if name.endswith("gate_up_proj"):
        whole = np.concatenate([whole[:, ::2], whole[:, 1::2]], axis=1)
    return {f"{name}_blocks": np.stack(codes), f"{name}_scales": np.stack(exponents)}, whole


_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def _nearest_e2m1(numbers: np.ndarray) -> np.ndarray:
    return np.abs(numbers[..., None] - _E2M1).argmin(-1)


def with_stacked_experts(tensors: Arrays) -> Arrays:
    """``tensors`` with gate_up_proj (or up_proj) and down_proj [experts, ...] instead of one tensor for each expert."""
    result: Arrays = {}
    experts: dict[str, dict[int, Arrays]] = {}
    for name, value in tensors.items():
        found = _EXPERT.fullmatch(name)
        if found is None:
            result[name] = value
        else:
            experts.setdefault(found[1], {}).setdefault(int(found[2]), {})[found[3]] = value
    for prefix, by_number in experts.items():
        each = [by_number[number] for number in sorted(by_number)]
        result[f"{prefix}.down_proj"] = np.stack([one["down_proj"] for one in each])
        if "gate_proj" in each[0]:
            both = [np.concatenate([one["gate_proj"], one["up_proj"]]) for one in each]
            result[f"{prefix}.gate_up_proj"] = np.stack(both)
        else:
            result[f"{prefix}.up_proj"] = np.stack([one["up_proj"] for one in each])
    return result


def _in_rows(name: str, value: np.ndarray) -> np.ndarray:
    rows = value.swapaxes(1, 2)
    return np.concatenate([rows[:, ::2], rows[:, 1::2]], axis=1) if name.endswith("gate_up_proj") else rows


def _in_columns(name: str, value: np.ndarray) -> np.ndarray:
    rows = value.copy()
    if name.endswith("gate_up_proj"):
        rows[:, ::2], rows[:, 1::2] = np.split(value, 2, axis=1)
    return np.ascontiguousarray(rows.swapaxes(1, 2))


def save_stacked(
    folder: Path, model_type: str, pack: Pack, config: Mapping[str, Any], **overrides: Any
) -> tuple[Path, Path]:
    """Two checkpoints in ``folder``: one with experts packed by ``pack``, and a plain one with what they mean.

    config: the quantization_config.
    """
    plain = save_tiny_model(folder / "plain", model_type, dtype="bfloat16", **overrides)
    quantized = Path(shutil.copytree(plain, folder / "quantized"))
    stored: Arrays = {}
    meant: Arrays = {}
    for name, value in with_stacked_experts(load_file(plain / "model.safetensors")).items():
        if value.ndim == 3 and "conv1d" not in name:
            in_columns = model_type == "gpt_oss"  # the rows on the last axis; those of gate_up_proj in turns
            tensors, numbers = pack(name, _in_rows(name, value) if in_columns else value)
            meant[name] = _in_columns(name, numbers) if in_columns else numbers
            stored |= tensors
        else:
            stored[name] = meant[name] = value
    save_tensors(quantized, stored)
    save_tensors(plain, meant)
    edit_quantization(quantized, dict(config))
    return quantized, plain
