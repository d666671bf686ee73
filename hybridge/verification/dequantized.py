"""The float32 values of quantised weights, by each format's own formula.

This is the reference: it shares only names of files and tensors with the exporter's readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.safetensors_file import TensorSlot


@dataclass(frozen=True)
class MeantWeight:
    """The weight ``name`` [shape], computed by ``floats`` as float32 from the tensors ``stored`` of the checkpoint."""

    name: str
    shape: tuple[int, ...]
    stored: tuple[str, ...]
    floats: Callable[[], np.ndarray]


Tensors = Mapping[str, TensorSlot]
# (tensors of a matrix by the last part of their names, its rows, its columns) -> the matrix.
Formula = Callable[[Mapping[str, np.ndarray], int, int], np.ndarray]
_E2M1 = np.array([sign * size for sign in (1, -1) for size in (0, 0.5, 1, 1.5, 2, 3, 4, 6)], np.float32)


def _e4m3(byte: int) -> float:
    """One sign, four exponents with a bias of 7, three bits of mantissa; no infinities."""
    sign, exponent, mantissa = (-1.0) ** (byte >> 7), byte >> 3 & 15, byte & 7
    if byte & 127 == 127:
        return np.nan
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


_E4M3 = np.array([_e4m3(byte) for byte in range(256)], np.float32)


def meant_weights(config: Mapping[str, Any], tensors: Tensors) -> Iterator[MeantWeight]:
    """The weights of a checkpoint with the quantization_config ``config``."""
    return _METHODS[config["quant_method"]](config, tensors)


def _gptq(config: Mapping[str, Any], tensors: Tensors) -> Iterator[MeantWeight]:
    less = 0 if config.get("checkpoint_format") == "gptq_v2" else 1
    for module in _modules(tensors, "qweight"):
        words, scales = tensors[f"{module}.qweight"].shape, tensors[f"{module}.scales"].shape
        yield _weight(tensors, module, (scales[1], words[0] * 32 // config["bits"]), partial(_gptq_matrix, less))


def _gptq_matrix(less: int, values: Mapping[str, np.ndarray], rows: int, columns: int) -> np.ndarray:
    """(q[k, n] - z[g, n]) * s[g, n] with g = g_idx[k]; q in words along k, z along n."""
    scales = _wide(values["scales"])
    bits = 32 * len(values["qweight"]) // columns
    numbers = _codes(values["qweight"].T, bits).T
    zeros = (_codes(values["qzeros"], bits)[:, :rows] + less) % (1 << bits)
    groups = values["g_idx"] if "g_idx" in values else np.arange(columns) // (columns // len(scales))
    return ((numbers - zeros[groups]) * scales[groups]).T


def _awq(config: Mapping[str, Any], tensors: Tensors) -> Iterator[MeantWeight]:
    for module in _modules(tensors, "qweight"):
        words = tensors[f"{module}.qweight"].shape
        yield _weight(tensors, module, (words[1] * 8, words[0]), _awq_matrix)


def _awq_matrix(values: Mapping[str, np.ndarray], rows: int, columns: int) -> np.ndarray:
    """(q[k, n] - z[g, n]) * s[g, n]; nibble i of a word holds its output feature (0, 2, 4, 6, 1, 3, 5, 7)[i]."""
    features = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])
    numbers, zeros = (
        _codes(values[name], 4).reshape(-1, rows // 8, 8)[..., features].reshape(-1, rows)
        for name in ("qweight", "qzeros")
    )
    scales = _wide(values["scales"])
    groups = np.arange(columns) // (columns // len(scales))
    return ((numbers - zeros[groups]) * scales[groups]).T


def _compressed_tensors(config: Mapping[str, Any], tensors: Tensors) -> Iterator[MeantWeight]:
    block = next((group["weights"].get("block_structure") for group in config["config_groups"].values()), None)
    for module in sorted({*_modules(tensors, "weight_packed"), *_modules(tensors, "weight_scale")}):
        if f"{module}.weight_shape" in tensors:
            shape = tuple(int(size) for size in tensors[f"{module}.weight_shape"].map())
            yield _weight(tensors, module, shape, _pack_quantized)
        elif f"{module}.weight_packed" in tensors:
            *rows, half = tensors[f"{module}.weight_packed"].shape
            yield _weight(tensors, module, (*rows, 2 * half), _float4)
        else:
            yield _weight(tensors, module, tensors[f"{module}.weight"].shape, partial(_eight_bits, block=block))


def _fp8(config: Mapping[str, Any], tensors: Tensors) -> Iterator[MeantWeight]:
    block = config.get("weight_block_size")
    for module in _modules(tensors, "weight_scale_inv" if block else "weight_scale"):
        yield _weight(tensors, module, tensors[f"{module}.weight"].shape, partial(_eight_bits, block=block))
    for name in _experts(tensors, "_scale_inv"):
        yield _stacked(tensors, name, tensors[name].shape, partial(_eight_bits, block=block), "weight_scale_inv")


def _mxfp4(config: Mapping[str, Any], tensors: Tensors) -> Iterator[MeantWeight]:
    """gpt-oss: blocks of 32 columns; in gate_up_proj the even rows are the gate's, which come first here."""
    for name in _experts(tensors, "_scales"):
        experts, rows, blocks, _ = tensors[f"{name}_blocks"].shape
        shape, slots = (experts, rows, 32 * blocks), (f"{name}_blocks", f"{name}_scales")

        def floats(shape: tuple[int, ...] = shape, slots: tuple[str, str] = slots) -> np.ndarray:
            codes, exponents = (tensors[slot].map() for slot in slots)
            values = {"weight": codes.reshape(*shape[:2], -1), "weight_scale": exponents}
            found = _of_experts(_float4, values, shape)
            return np.concatenate([found[:, ::2], found[:, 1::2]], axis=1) if "gate_up_proj" in slots[0] else found

        yield MeantWeight(name, shape, slots, floats)


def _modelopt(config: Mapping[str, Any], tensors: Tensors) -> Iterator[MeantWeight]:
    for module in _modules(tensors, "weight_scale"):
        weight, scale = tensors[f"{module}.weight"], tensors[f"{module}.weight_scale"]
        rows, columns = weight.shape
        if weight.dtype is not DType.UINT8:
            block = [128, 128] if prod(scale.shape) == -(-rows // 128) * -(-columns // 128) > 1 else None
            yield _weight(tensors, module, weight.shape, partial(_eight_bits, block=block))
        elif scale.dtype.is_floating:
            yield _weight(tensors, module, (2 * rows, columns), _modelopt_int4)
        else:
            yield _weight(tensors, module, (rows, 2 * columns), _float4)
    for name in _experts(tensors, "_weight_scale"):
        shape = tensors[name].shape
        if tensors[name].dtype is DType.UINT8:
            yield _stacked(tensors, name, (*shape[:2], 2 * shape[2]), _float4, "weight_scale")
        else:
            yield _stacked(tensors, name, shape, _eight_bits, "weight_scale")


def _modelopt_int4(values: Mapping[str, np.ndarray], rows: int, columns: int) -> np.ndarray:
    """ModelOpt: rows 2 i and 2 i + 1 in the low and high half of a byte, signed."""
    codes = np.empty((rows, columns), np.int16)
    codes[::2], codes[1::2] = values["weight"] % 16, values["weight"] // 16
    scales = _wide(values["weight_scale"])
    numbers = np.where(codes > 7, codes - 16, codes) * np.repeat(scales, columns // scales.shape[-1], axis=1)
    return numbers * _factors(values)


def _float4(values: Mapping[str, np.ndarray], rows: int, columns: int) -> np.ndarray:
    """e2m1, two in a byte, the first in the low half. A scale is e4m3 of 16 columns, times or divided by one of all, or
    the exponent of a power of two of 32 columns."""
    codes = values["weight_packed"] if "weight_packed" in values else values["weight"]
    numbers = np.stack([_E2M1[codes % 16], _E2M1[codes // 16]], axis=-1).reshape(rows, columns)
    raw = values["weight_scale"]
    scales = np.exp2(raw.astype(np.float32) - 127) if raw.dtype == np.uint8 else _E4M3[raw.view(np.uint8)]
    if "weight_global_scale" in values:
        scales = scales * (np.float32(1) / values["weight_global_scale"].reshape(()))
    elif "weight_scale_2" in values:
        scales = scales * values["weight_scale_2"].reshape(())
    return numbers * np.repeat(scales, columns // scales.shape[-1], axis=1) * _factors(values)


def _factors(values: Mapping[str, np.ndarray]) -> np.ndarray:
    """[columns] or []: factors of a product's input, applied to the matrix here."""
    return _wide(values.get("pre_quant_scale", np.array(1)))


def _eight_bits(
    values: Mapping[str, np.ndarray], rows: int, columns: int, block: Sequence[int] | None = None
) -> np.ndarray:
    """int8 or e4m3 minus zero points, times scales of the tensor, of rows, of groups of columns, or of blocks."""
    weight = values["weight"]
    numbers = _wide(weight) if weight.dtype == np.int8 else _E4M3[weight.view(np.uint8)]
    stored = _wide(values["weight_scale_inv" if "weight_scale_inv" in values else "weight_scale"])
    scales: np.ndarray = stored.reshape(len(stored), -1) if stored.ndim > 0 else stored.reshape(1, 1)
    if "weight_zero_point" in values:
        zeros: np.ndarray = _wide(values["weight_zero_point"]).reshape(scales.shape)
        numbers = numbers - np.repeat(zeros, columns // zeros.shape[-1], axis=1)
    if block is not None and scales.size > 1:
        scales = scales.reshape(-(-rows // block[0]), -(-columns // block[1]))
        scales = np.repeat(np.repeat(scales, block[0], axis=0), block[1], axis=1)[:rows, :columns]
        return numbers * scales
    return numbers * np.repeat(scales, columns // scales.shape[-1], axis=1) * _factors(values)


def _pack_quantized(values: Mapping[str, np.ndarray], rows: int, columns: int) -> np.ndarray:
    """compressed-tensors: codes of ``bits`` in int32 words along a row, with an offset of half their range."""
    packed = values["weight_packed"]
    bits = 4 if packed.shape[1] == -(-columns // 8) else 8
    numbers = _codes(packed, bits)[:, :columns] - (1 << (bits - 1))
    scales = _wide(values["weight_scale"])
    groups = np.arange(columns) // (columns // scales.shape[-1])
    if "weight_g_idx" in values and values["weight_g_idx"].min() >= 0:
        groups = values["weight_g_idx"]
    if "weight_zero_point" in values:
        zeros = _codes(values["weight_zero_point"].T, bits)[:, :rows].T - (1 << (bits - 1))
        numbers = numbers - zeros[:, groups]
    return numbers * scales[:, groups]


def _codes(words: np.ndarray, bits: int) -> np.ndarray:
    """float32 [rows, n * 32 / bits]: the unsigned codes of int32 ``words`` [rows, n], from the lowest bits on."""
    unsigned = np.ascontiguousarray(words).view(np.uint32)
    codes = [(unsigned >> np.uint32(shift)) & np.uint32((1 << bits) - 1) for shift in range(0, 32, bits)]
    return np.stack(codes, axis=-1).reshape(len(words), -1).astype(np.float32)


def _modules(tensors: Tensors, suffix: str) -> list[str]:
    return sorted(name.removesuffix(f".{suffix}") for name in tensors if name.endswith(f".{suffix}"))


def _weight(
    tensors: Tensors,
    module: str,
    shape: tuple[int, ...],
    formula: Formula,
) -> MeantWeight:
    """The weight of ``module``: ``formula`` of its tensors, which are given by the last parts of their names."""
    stored = tuple(name for name in tensors if name.rpartition(".")[0] == module and not name.endswith(".bias"))

    def floats() -> np.ndarray:
        values = {name.rpartition(".")[2]: tensors[name].map() for name in stored}
        return _of_experts(formula, values, shape)

    return MeantWeight(f"{module}.weight", shape, stored, floats)


def _experts(tensors: Tensors, suffix: str) -> list[str]:
    """Names of weights with an axis of experts: X, where the scales are X and ``suffix``."""
    return sorted(
        name.removesuffix(suffix)
        for name in tensors
        if name.endswith(suffix) and not name.rpartition(".")[2].startswith("weight")
    )


def _stacked(tensors: Tensors, name: str, shape: tuple[int, ...], formula: Formula, scale: str) -> MeantWeight:
    """The weight ``name`` [experts, rows, columns], whose other tensors are called like it: ``formula`` of each expert.

    scale: what the formula calls the scales.
    """
    ends = {"": "weight", "_scale_inv": scale, "_weight_scale": scale, "_weight_scale_2": "weight_scale_2"}
    unused = ("_activation_scale", "_input_scale")
    stored = tuple(name + end for end in (*ends, *unused) if name + end in tensors)

    def floats() -> np.ndarray:
        values = {ends[slot.removeprefix(name)]: tensors[slot].map() for slot in stored if not slot.endswith(unused)}
        return _of_experts(formula, values, shape)

    return MeantWeight(name, shape, stored, floats)


def _of_experts(formula: Formula, values: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """float32 [shape]: ``formula`` of ``values``, or of the part of each expert where the shape has an axis of them."""
    if len(shape) == 2:
        return formula(values, *shape).astype(np.float32)
    parts = [
        {last: value[expert] if value.shape[:1] == shape[:1] else value for last, value in values.items()}
        for expert in range(shape[0])
    ]
    return np.stack([formula(part, *shape[1:]).astype(np.float32) for part in parts])


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32)


_METHODS: Mapping[str, Callable[[Mapping[str, Any], Tensors], Iterator[MeantWeight]]] = {
    "auto-round": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "gptq": _gptq,
    "modelopt": _modelopt,
    "mxfp4": _mxfp4,
}
