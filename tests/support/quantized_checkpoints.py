"""Tiny quantised checkpoints: the matrices of a float checkpoint rounded and packed, and what they then mean."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from tests.support.mtp_checkpoints import save_with_mtp_head
from tests.support.tiny_models import save_tiny_model

Arrays = dict[str, np.ndarray]
# What recipes leave in high precision, and what is no matrix of a product.
NEVER = ("norm", "conv1d", "A_log", "dt_bias", ".D", "embed", "gate.weight", "in_proj_a", "in_proj_b")


@dataclass(frozen=True)
class Rounded:
    """A matrix as integers of ``bits``: ``numbers`` unsigned [rows, columns], groups of ``group`` columns.

    scales and zeros [rows, groups]. groups: the group of each column.
    """

    numbers: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    groups: np.ndarray
    bits: int

    @property
    def floats(self) -> np.ndarray:
        """float32 [rows, columns]: what the numbers mean."""
        scales, zeros = self.scales.astype(np.float32)[:, self.groups], self.zeros[:, self.groups]
        return (self.numbers.astype(np.float32) - zeros.astype(np.float32)) * scales


def rounded(
    matrix: np.ndarray, group: int | None, bits: int = 4, symmetric: bool = True, ordered: bool = False, seed: int = 0
) -> Rounded:
    """``matrix`` [rows, columns] rounded; with ``ordered`` columns belong to groups at random, as of act-order."""
    rows, columns = matrix.shape
    group = group or columns
    groups = np.arange(columns) // group
    if ordered:
        groups = np.random.default_rng(seed).permutation(groups)
    scales = np.empty((rows, columns // group), ml_dtypes.bfloat16)
    zeros = np.full(scales.shape, 1 << (bits - 1), np.uint8)
    top = (1 << bits) - 1
    for index in range(scales.shape[1]):
        part = matrix[:, groups == index].astype(np.float32)
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 1e-3)
        if symmetric:
            scales[:, index] = np.abs(part).max(1) / (top // 2) + 1e-4
        else:
            scales[:, index] = (high - low) / top + 1e-4
            zeros[:, index] = np.clip(np.round(-low / scales[:, index].astype(np.float32)), 0, top)
    wide, points = scales.astype(np.float32)[:, groups], zeros[:, groups].astype(np.float32)
    numbers = np.clip(np.round(matrix.astype(np.float32) / wide) + points, 0, top).astype(np.uint8)
    return Rounded(numbers, scales, zeros, groups, bits)


def packed(numbers: np.ndarray, bits: int) -> np.ndarray:
    """int32 words [rows, n] of unsigned numbers [rows, columns], the first column in the lowest bits."""
    count = 32 // bits
    padded = np.pad(numbers.astype(np.uint64), ((0, 0), (0, -numbers.shape[1] % count)))
    words = np.zeros((len(padded), padded.shape[1] // count), np.uint64)
    for index in range(count):
        words |= padded[:, index::count] << np.uint64(bits * index)
    return words.astype(np.uint32).view(np.int32)


@dataclass(frozen=True)
class Format:
    """A way to store weights. pack: module name and matrix to its tensors and the float32 matrix that they mean."""

    pack: Callable[[str, np.ndarray], tuple[Arrays, np.ndarray]]
    config: dict[str, Any]
    chosen: Callable[[str], bool] = field(default=lambda name: not any(part in name for part in NEVER))


def save_quantized(
    folder: Path, model_type: str, form: Format, dtype: str = "bfloat16", mtp: bool = False, **overrides: Any
) -> tuple[Path, Path]:
    """Two checkpoints in ``folder``: one in ``form``, and a plain one with the float32 numbers that it means.

    mtp: with a multi-token prediction head.
    """
    save = save_with_mtp_head if mtp else save_tiny_model
    plain = save(folder / "plain", model_type, dtype=dtype, **overrides)
    quantized = Path(shutil.copytree(plain, folder / "quantized"))
    stored: Arrays = {}
    meant: Arrays = {}
    for name, value in load_file(plain / "model.safetensors").items():
        if value.ndim == 2 and name.endswith(".weight") and form.chosen(name):
            tensors, meant[name] = form.pack(name.removesuffix(".weight"), value.astype(np.float32))
            stored |= tensors
        else:
            stored[name] = meant[name] = value
    save_tensors(quantized, stored)
    save_tensors(plain, meant)
    edit_quantization(quantized, form.config)
    return quantized, plain


def save_tensors(folder: Path, tensors: Arrays) -> None:
    """Replace the weights of the checkpoint ``folder``."""
    save_file({n: np.ascontiguousarray(v) for n, v in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


def edit_quantization(folder: Path, config: dict[str, Any]) -> None:
    """Set the quantization_config of the checkpoint ``folder``."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": config}))


def compressed_tensors(form: str, weights: dict[str, Any], ignore: Iterable[str] = (), **rest: Any) -> dict[str, Any]:
    """The quantization_config that llm-compressor writes for one group."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {**group, **rest}},
        "ignore": list(ignore),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def pack_quantized(
    group: int | None, bits: int = 4, symmetric: bool = True, ordered: bool = False, indexed: bool = False
) -> Format:
    """Format pack-quantized of compressed-tensors. indexed: with groups of columns that say nothing new."""

    def pack(module: str, matrix: np.ndarray) -> tuple[Arrays, np.ndarray]:
        found = rounded(matrix, group, bits, symmetric, ordered)
        tensors = {
            f"{module}.weight_packed": packed(found.numbers, bits),
            f"{module}.weight_scale": found.scales,
            f"{module}.weight_shape": np.array(matrix.shape, np.int64),
        }
        if not symmetric:
            tensors[f"{module}.weight_zero_point"] = np.ascontiguousarray(packed(found.zeros.T, bits).T)
        if ordered or indexed:
            tensors[f"{module}.weight_g_idx"] = found.groups.astype(np.int32)
        return tensors, found.floats

    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": "channel" if group is None else "group",
        "group_size": group,
        "dynamic": False,
        "actorder": "group" if ordered else None,
        "block_structure": None,
        "observer": "minmax",
        "observer_kwargs": {},
    }
    return Format(pack, compressed_tensors("pack-quantized", weights, ["model.embed_tokens"]))


def gptq(group: int, bits: int = 4, symmetric: bool = True, ordered: bool = False, version: int = 1) -> Format:
    """As AutoGPTQ (version 1) and GPTQModel (version 2) store weights."""

    def pack(module: str, matrix: np.ndarray) -> tuple[Arrays, np.ndarray]:
        found = rounded(matrix, group if group > 0 else None, bits, symmetric, ordered)
        zeros = (found.zeros - (2 - version)) & ((1 << bits) - 1)
        tensors = {
            "qweight": packed(found.numbers, bits).T,
            "qzeros": packed(zeros.T, bits),
            "scales": found.scales.T,
            "g_idx": found.groups.astype(np.int32),
        }
        return {f"{module}.{name}": np.ascontiguousarray(array) for name, array in tensors.items()}, found.floats

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": ordered}
    return Format(pack, {**config, "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}, _is_inner)


def awq(group: int) -> Format:
    """As AutoAWQ's gemm version stores weights."""

    def pack(module: str, matrix: np.ndarray) -> tuple[Arrays, np.ndarray]:
        found = rounded(matrix, group if group > 0 else None, symmetric=False)
        tensors = {
            "qweight": _interleaved(found.numbers.T),
            "qzeros": _interleaved(found.zeros.T),
            "scales": found.scales.T,
        }
        return {f"{module}.{name}": np.ascontiguousarray(array) for name, array in tensors.items()}, found.floats

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return Format(pack, config, _is_inner)


def _interleaved(numbers: np.ndarray) -> np.ndarray:
    """int32 words [n, rows / 8] of unsigned ``numbers`` [n, rows], in AutoAWQ's order."""
    order = [8 * word + feature for word in range(numbers.shape[1] // 8) for feature in (0, 2, 4, 6, 1, 3, 5, 7)]
    return packed(numbers[:, order], 4)


def _is_inner(name: str) -> bool:
    return not any(part in name for part in (*NEVER, "lm_head"))


E4M3_MAX, E2M1_MAX = 448.0, 6.0


def eight_bits(kind: str, strategy: str, symmetric: bool = True, inputs: dict[str, Any] | None = None) -> Format:
    """Formats float-quantized and int-quantized of compressed-tensors; kind: "float" or "int"."""

    def pack(module: str, matrix: np.ndarray) -> tuple[Arrays, np.ndarray]:
        top = E4M3_MAX if kind == "float" else 127
        if strategy == "block":
            scales = _block_maxima(matrix, 16, 32) / np.float32(top)
            wide = _spread(scales, matrix.shape, 16, 32)
        else:
            scales = np.abs(matrix).max(axis=1 if strategy == "channel" else None, keepdims=True) / np.float32(top)
            wide = scales = scales.reshape(-1, 1) if strategy == "channel" else scales.reshape(1)
        zeros = np.full(scales.shape, 0 if symmetric else 3, np.int8)
        numbers = matrix / wide
        if kind == "int":
            points = zeros.astype(np.float32) if strategy != "block" else 0
            stored = np.clip(np.round(numbers) + points, -128, 127).astype(np.int8)
            meant = (stored.astype(np.float32) - points) * wide
        else:
            stored = numbers.astype(ml_dtypes.float8_e4m3fn)
            meant = stored.astype(np.float32) * wide
        tensors: Arrays = {"weight": stored, "weight_scale": scales}
        if not symmetric:
            tensors["weight_zero_point"] = zeros
        if inputs and not inputs["dynamic"]:
            tensors["input_scale"] = np.array([0.02], np.float32)
        return {f"{module}.{name}": array for name, array in tensors.items()}, meant

    weights = {"num_bits": 8, "type": kind, "symmetric": symmetric, "strategy": strategy, "dynamic": False}
    if strategy == "block":
        weights["block_structure"] = [16, 32]
    form = "float-quantized" if kind == "float" else "int-quantized"
    return Format(pack, compressed_tensors(form, weights, input_activations=inputs))


def fp8_blocks(rows: int = 128, columns: int = 128) -> Format:
    """quant_method fp8, with scales of blocks."""

    def pack(module: str, matrix: np.ndarray) -> tuple[Arrays, np.ndarray]:
        scales = _block_maxima(matrix, rows, columns) / np.float32(E4M3_MAX)
        wide = _spread(scales, matrix.shape, rows, columns)
        stored = (matrix / wide).astype(ml_dtypes.float8_e4m3fn)
        return {f"{module}.weight": stored, f"{module}.weight_scale_inv": scales}, stored.astype(np.float32) * wide

    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    return Format(pack, {**config, "weight_block_size": [rows, columns]}, _is_inner)


def modelopt(algorithm: str, group: int = 16, factors: bool = False) -> Format:
    """As ModelOpt stores FP8, NVFP4, MXFP4 and W4A16_AWQ; factors: with pre_quant_scale."""

    def pack(module: str, matrix: np.ndarray) -> tuple[Arrays, np.ndarray]:
        if algorithm == "FP8":
            scale = np.float32(np.abs(matrix).max() / E4M3_MAX)
            stored = (matrix / scale).astype(ml_dtypes.float8_e4m3fn)
            tensors: Arrays = {"weight": stored, "weight_scale": np.array(scale), "input_scale": np.array(scale)}
            meant = stored.astype(np.float32) * scale
        elif algorithm == "W4A16_AWQ":
            found = rounded(matrix, group)
            codes = (found.numbers ^ 8).astype(np.uint8)
            tensors = {"weight": codes[::2] | codes[1::2] << 4, "weight_scale": found.scales}
            meant = found.floats
        elif algorithm == "MXFP4":
            exponents, codes, meant = _mx(matrix)
            tensors = {"weight": codes, "weight_scale": exponents}
        else:
            whole, scales, codes, meant = _nv(matrix)
            tensors = {"weight": codes, "weight_scale": scales, "weight_scale_2": np.array(whole)}
            tensors["input_scale"] = np.array(0.01, np.float32)
        if factors:
            own = np.linspace(0.5, 2, matrix.shape[1], dtype=np.float32)
            tensors["pre_quant_scale"], meant = own, meant * own
        return {f"{module}.{name}": array for name, array in tensors.items()}, meant

    config = {"quant_method": "modelopt", "quant_algo": algorithm, "exclude_modules": ["lm_head"]}
    return Format(pack, {**config, "producer": {"name": "modelopt"}, "kv_cache_quant_algo": "FP8"}, _is_inner)


def float4(form: str, inputs: dict[str, Any] | None = None) -> Format:
    """Formats nvfp4-pack-quantized and mxfp4-pack-quantized of compressed-tensors."""
    group = 16 if form.startswith("nv") else 32

    def pack(module: str, matrix: np.ndarray) -> tuple[Arrays, np.ndarray]:
        if group == 32:
            exponents, codes, meant = _mx(matrix)
            tensors: Arrays = {"weight_packed": codes, "weight_scale": exponents}
        else:
            whole, scales, codes, _ = _nv(matrix)
            divisor = np.array([1 / whole], np.float32)
            tensors = {"weight_packed": codes, "weight_scale": scales, "weight_global_scale": divisor}
            tensors["input_global_scale"] = np.full(1, 600, np.float32)
            wide = np.repeat(scales.astype(np.float32) * (np.float32(1) / divisor[0]), 16, axis=1)
            meant = _e2m1_numbers(codes) * wide
        return {f"{module}.{name}": array for name, array in tensors.items()}, meant

    strategy = "tensor_group" if group == 16 else "group"
    weights = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": strategy, "group_size": group}
    return Format(pack, compressed_tensors(form, weights, input_activations=inputs))


def _nv(matrix: np.ndarray) -> tuple[np.float32, np.ndarray, np.ndarray, np.ndarray]:
    """The scale of all, those of blocks of 16, the packed codes and what they mean."""
    whole = np.float32(np.abs(matrix).max() / (E2M1_MAX * E4M3_MAX))
    scales = np.maximum(_block_maxima(matrix, 1, 16) / E2M1_MAX / whole, 0.01).astype(ml_dtypes.float8_e4m3fn)
    wide = np.repeat(scales.astype(np.float32) * whole, 16, axis=1)
    codes = _e2m1_codes(matrix / wide)
    return whole, scales, codes, _e2m1_numbers(codes) * wide


def _mx(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The exponents of blocks of 32, the packed codes and what they mean."""
    exponents = (np.ceil(np.log2(_block_maxima(matrix, 1, 32) / E2M1_MAX)) + 127).astype(np.uint8)
    wide = np.repeat(np.exp2(exponents.astype(np.float32) - 127), 32, axis=1)
    codes = _e2m1_codes(matrix / wide)
    return exponents, codes, _e2m1_numbers(codes) * wide


def _e2m1_codes(numbers: np.ndarray) -> np.ndarray:
    """Bytes [rows, columns / 2], the first number in the low half."""
    codes = numbers.astype(np.float32).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4


def _e2m1_numbers(codes: np.ndarray) -> np.ndarray:
    halves = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)
    return halves.view(ml_dtypes.float4_e2m1fn).astype(np.float32)


def _block_maxima(matrix: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """float32: the largest size in each block; those at the ends may be smaller."""
    high, wide = matrix.shape
    padded = np.pad(np.abs(matrix), ((0, -high % rows), (0, -wide % columns)))
    blocks = padded.reshape(len(padded) // rows, rows, padded.shape[1] // columns, columns)
    return blocks.max(axis=(1, 3)).astype(np.float32)


def _spread(scales: np.ndarray, shape: tuple[int, ...], rows: int, columns: int) -> np.ndarray:
    return np.repeat(np.repeat(scales, rows, axis=0), columns, axis=1)[: shape[0], : shape[1]].astype(np.float32)
