"""Weights as NVIDIA's ModelOpt stores them: hf_quant_config.json, or a quantization_config of quant_method "modelopt".

quant_algo names the format of all modules, or with MIXED_PRECISION quantized_layers that of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.exporter.checkpoint.quantized.experts import is_stacked, read_experts
from hybridge.exporter.checkpoint.quantized.nibbles import signed_from_numbers, unpacked_bytes
from hybridge.exporter.checkpoint.quantized.scaled import as_stored, block_scales, one_scale, power_of_two_scales
from hybridge.exporter.checkpoint.quantized.settings import settings_of
from hybridge.exporter.checkpoint.quantized.stored import SCALE_TYPES, StoredTensors, check_groups, matrix_shape
from hybridge.exporter.checkpoint.quantized.targets import check_names, matches, names_of
from hybridge.exporter.checkpoint.quantized.tensor import GraphTensor, InputRounding, QuantizedTensor, row_ranges

METHOD = "modelopt"
_MIXED = "MIXED_PRECISION"
_WHERE = "quantization config of modelopt"
_UNUSED = (
    *("quant_method", "producer", "config_groups", "kv_cache_scheme", "kv_cache_quant_algo", "group_size"),
    *("has_zero_point", "pre_quant_scale", "quantized_layers", "exclude_modules", "ignore", "quant_algo"),
)
# Suffixes of the other tensors of X, a tensor with all experts: X_weight_scale and so on.
_EXPERT_PARTS = ("weight_scale", "weight_scale_2", "pre_quant_scale", "input_scale")
# How inputs are rounded: the type, and how many features share a scale (InputRounding.group).
_INPUTS: Mapping[str, tuple[DType, int | None]] = MappingProxyType(
    {
        "FP8": (DType.FLOAT8E4M3FN, None),
        "FP8_PER_CHANNEL_PER_TOKEN": (DType.FLOAT8E4M3FN, 0),
        "W8A8_SQ_PER_CHANNEL": (DType.INT8, None),
        "NVFP4": (DType.FLOAT4E2M1, 16),
        "NVFP4_AWQ": (DType.FLOAT4E2M1, 16),
        **dict.fromkeys(("W4A8_NVFP4_FP8", "W4A8_MXFP4_FP8", "W4A8_AWQ"), (DType.FLOAT8E4M3FN, None)),
    }
)
Reader = Callable[[str, str, StoredTensors], QuantizedTensor]


def read_modelopt(config: Mapping[str, Any], stored: StoredTensors) -> Iterator[QuantizedTensor]:
    """The weights of a checkpoint; ``config``: the quantization_config, or hf_quant_config.json's "quantization".

    UnsupportedError: an unsupported format. CheckpointError: the tensors contradict the config.
    """
    fields = settings_of(config, _UNUSED, _WHERE)
    fields.refuse_unknown()
    algorithm = fields.string("quant_algo", None)
    layers = fields.object("quantized_layers") if algorithm == _MIXED else {}
    excluded = [*names_of(fields, "exclude_modules"), *names_of(fields, "ignore")]
    modules = stored.all_modules
    check_names(excluded, modules, "exclude_modules")
    check_names(layers, modules, "quantized_layers")
    for module in stored.modules("weight_scale"):
        yield _weight(_algorithm_of(module, algorithm, layers, excluded), module, stored)
    stacked = (name.removesuffix("_weight_scale") for name in sorted(stored.left) if name.endswith("_weight_scale"))
    for name in [name for name in stacked if is_stacked(name, stored)]:
        own = _algorithm_of(name, algorithm, layers, excluded)
        parts = {"weight": name, **{last: f"{name}_{last}" for last in _EXPERT_PARTS}}
        yield read_experts(name, parts, partial(_weight, own), stored)


def _algorithm_of(module: str, algorithm: str | None, layers: Mapping[str, Any], excluded: Sequence[str]) -> str:
    """The format of ``module``; with MIXED_PRECISION that of its entry in ``layers``, or of the module it is in."""
    own: Any = algorithm
    if algorithm == _MIXED:
        entry = layers.get(module, layers.get(module.rpartition(".")[0]))
        own = entry.get("quant_algo") if isinstance(entry, dict) else None
    if own is None or matches(module, excluded):
        raise CheckpointError(f"{_WHERE}: expected an entry for the quantised module {module}, found none")
    if str(own) not in _READERS:
        raise UnsupportedError(f"{_WHERE}: {module}: expected one of {', '.join(_READERS)}, found {own!r}")
    return str(own)


def _weight(algorithm: str, module: str, stored: StoredTensors) -> QuantizedTensor:
    weight = _with_factors(_READERS[algorithm](module, algorithm, stored), module, stored)
    rounded = _with_inputs(weight, module, algorithm, stored)
    stored.drop_of(module, "input_scale")
    return rounded


def _fp8_blocks(module: str, algorithm: str, stored: StoredTensors) -> QuantizedTensor:
    """Scales [rows / 128, columns / 128], or with axes of size 1 between."""
    weight = stored.take(f"{module}.weight", DType.FLOAT8E4M3FN)
    shape = matrix_shape(weight)
    scale = stored.take(f"{module}.weight_scale", *SCALE_TYPES)
    expected = tuple(-(-size // 128) for size in shape)
    flat = replace(scale, shape=expected) if prod(scale.shape) == prod(expected) else scale
    scales, block = block_scales(flat, shape, 128, 128)
    return QuantizedTensor(weight.name, _name(algorithm), shape, as_stored(weight), scales, block, (weight, scale))


def _scaled(module: str, algorithm: str, stored: StoredTensors) -> QuantizedTensor:
    """Numbers of 8 bits with one scale, or one scale per row."""
    weight = stored.take(f"{module}.weight", DType.FLOAT8E4M3FN if algorithm.startswith("FP8") else DType.INT8)
    shape = matrix_shape(weight)
    scale = stored.take(f"{module}.weight_scale", *SCALE_TYPES)
    by_row = scale.shape in ((shape[0],), (shape[0], 1)) and shape[0] > 1
    return QuantizedTensor(
        weight.name,
        _name(algorithm),
        shape,
        as_stored(weight),
        as_stored(scale, shape=(shape[0],)) if by_row else one_scale(scale),
        None,
        (weight, scale),
    )


def _float4(module: str, algorithm: str, stored: StoredTensors) -> QuantizedTensor:
    """Bytes [rows, columns / 2] of two e2m1 numbers, the first in the low half.

    X.weight_scale: an e4m3 number per 16 columns, times X.weight_scale_2; in MX formats an exponent per 32 columns.
    """
    block = 32 if "MXFP4" in algorithm else 16
    weight = stored.take(f"{module}.weight", DType.UINT8)
    shape = matrix_shape(weight)[0], 2 * matrix_shape(weight)[1]
    groups = check_groups(weight.name, shape[1], block)
    kind = DType.UINT8 if block == 32 else DType.FLOAT8E4M3FN
    scale = stored.take(f"{module}.weight_scale", kind, shape=(shape[0], groups))
    global_scale = None if block == 32 else stored.take(f"{module}.weight_scale_2", DType.FLOAT32)
    return QuantizedTensor(
        weight.name,
        _name(algorithm),
        shape,
        as_stored(weight, DType.FLOAT4E2M1, shape),
        as_stored(scale) if global_scale else power_of_two_scales(scale),
        block,
        (weight, scale, global_scale) if global_scale else (weight, scale),
        global_scale=one_scale(global_scale) if global_scale else None,
    )


def _int4(module: str, algorithm: str, stored: StoredTensors) -> QuantizedTensor:
    """Bytes [rows / 2, columns] of two signed numbers: rows 2 i in the low half and 2 i + 1."""
    weight = stored.take(f"{module}.weight", DType.UINT8)
    shape = 2 * matrix_shape(weight)[0], matrix_shape(weight)[1]
    scale = stored.take(f"{module}.weight_scale", *SCALE_TYPES)
    groups = matrix_shape(scale)[1]
    if scale.shape[0] != shape[0] or shape[1] % groups or shape[1] % 2:
        raise CheckpointError(f"{scale.name}: expected [{shape[0]}, groups], found {list(scale.shape)}: fetch it again")

    def blocks() -> Iterator[np.ndarray]:
        for part in row_ranges(shape[0], shape[1]):
            pairs = weight.map()[part.start // 2 : part.stop // 2]
            rows = unpacked_bytes(np.ascontiguousarray(pairs.T), 4).T
            yield signed_from_numbers(np.ascontiguousarray(rows) ^ np.uint8(8), 4)

    return QuantizedTensor(
        weight.name,
        _name(algorithm),
        shape,
        GraphTensor(DType.INT4, shape, blocks=blocks),
        as_stored(scale),
        shape[1] // groups,
        (weight, scale),
    )


def _with_factors(weight: QuantizedTensor, module: str, stored: StoredTensors) -> QuantizedTensor:
    """``weight``, with its input multiplied by X.pre_quant_scale [columns] if there is one."""
    slot = stored.optional(f"{module}.pre_quant_scale", *SCALE_TYPES, shape=(weight.shape[1],))
    return weight if slot is None else replace(weight, factors=as_stored(slot), sources=(*weight.sources, slot))


def _with_inputs(weight: QuantizedTensor, module: str, algorithm: str, stored: StoredTensors) -> QuantizedTensor:
    """``weight`` with the rounding of its inputs; ``unrounded`` names a rounding whose stored scale is missing."""
    if algorithm not in _INPUTS:
        return weight
    dtype, group = _INPUTS[algorithm]
    rounding = InputRounding(dtype, group)
    if group == 0:
        return replace(weight, inputs=rounding)
    slot = stored.optional(f"{module}.input_scale", *SCALE_TYPES)
    if slot is None:
        return replace(weight, unrounded=f"{rounding.name} with a missing input_scale")
    return replace(weight, inputs=replace(rounding, scale=one_scale(slot)), sources=(*weight.sources, slot))


def _name(algorithm: str) -> str:
    return f"{METHOD} {algorithm}"


_READERS: Mapping[str, Reader] = MappingProxyType(
    {
        **dict.fromkeys(("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "W8A16", "W8A8_SQ_PER_CHANNEL"), _scaled),
        "FP8_PB_WO": _fp8_blocks,
        **dict.fromkeys(("NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "W4A8_NVFP4_FP8", "MXFP4", "W4A8_MXFP4_FP8"), _float4),
        **dict.fromkeys(("W4A16_AWQ", "W4A8_AWQ"), _int4),
    }
)
