"""Finds out how a checkpoint's weights are quantised, and reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint.quantized.awq import read_awq
from hybridge.exporter.checkpoint.quantized.cache_scales import CacheScales, take_cache_scales
from hybridge.exporter.checkpoint.quantized.compressed_tensors import read_compressed_tensors
from hybridge.exporter.checkpoint.quantized.fp8 import read_fp8
from hybridge.exporter.checkpoint.quantized.gptq import read_gptq
from hybridge.exporter.checkpoint.quantized.modelopt import METHOD as MODELOPT
from hybridge.exporter.checkpoint.quantized.modelopt import read_modelopt
from hybridge.exporter.checkpoint.quantized.mxfp4 import read_mxfp4
from hybridge.exporter.checkpoint.quantized.stored import StoredTensors
from hybridge.exporter.checkpoint.quantized.tensor import QuantizedTensor
from hybridge.exporter.families.text_models import TEXT_CONFIG_NAMES

Reader = Callable[[Mapping[str, Any], StoredTensors], Iterator[QuantizedTensor]]
# quant_method of a quantization_config.
_READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "auto-round": read_gptq,
        "awq": read_awq,
        "compressed-tensors": read_compressed_tensors,
        "fp8": read_fp8,
        "gptq": read_gptq,
        "modelopt": read_modelopt,
        "mxfp4": read_mxfp4,
    }
)
MODELOPT_FILE = "hf_quant_config.json"
# Keys of quantisation settings in config.json, also inside the text model's config.
_KEYS = ("quantization_config", "compression_config")
# Types of a checkpoint's tensors that no parameter of a model has.
_PACKED = (DType.UINT8, DType.INT8, DType.FLOAT8E4M3FN)


@dataclass(frozen=True)
class LogicalTensors:
    """A checkpoint's tensors as the model has them.

    tensors: for quantised weights, logical shape, element type and stored bytes. quantized: how to read them, by name.
    notes: unsupported parts of the format. cache_scales: scales of keys and values.
    """

    tensors: Mapping[str, TensorSlot]
    quantized: Mapping[str, QuantizedTensor]
    notes: tuple[str, ...] = ()
    cache_scales: CacheScales = field(default_factory=CacheScales)


def without_quantization(
    config: Mapping[str, Any], beside: Mapping[str, Any] | None = None
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Split ``config`` from its quantization_config; UnsupportedError unless that is an object.

    beside: what MODELOPT_FILE holds, which counts where the config has none.
    """
    found = None
    plain = dict(config)
    for key in _KEYS:
        found = plain.pop(key, None) or found
    for name in TEXT_CONFIG_NAMES:
        text = plain.get(name)
        if isinstance(text, dict) and any(key in text for key in _KEYS):
            plain[name] = {key: value for key, value in text.items() if key not in _KEYS}
            found = found or next((text[key] for key in _KEYS if text.get(key)), None)
    if not found and beside is not None:
        found = beside.get("quantization")
        found = {**found, "quant_method": MODELOPT} if isinstance(found, dict) else found
    if found is not None and not isinstance(found, dict):
        raise UnsupportedError(f"config.json: quantization_config: expected an object, found {found!r}: {_REMEDY}")
    return plain, found


def logical_tensors(config: Mapping[str, Any] | None, tensors: Mapping[str, TensorSlot]) -> LogicalTensors:
    """The weights that the quantization_config ``config`` describes, and all other tensors.

    UnsupportedError: a format or a part of it that is not honoured, by name. CheckpointError: the tensors are not what
    the config says.
    """
    stored = StoredTensors(tensors)
    found: dict[str, QuantizedTensor] = {}
    cache_scales = CacheScales()
    if config is not None:
        cache_scales = take_cache_scales(config, stored)
        for weight in _reader(config)(config, stored):
            if weight.name in tensors and tensors[weight.name] not in weight.sources:
                raise CheckpointError(f"expected one weight {weight.name}, found it plain and quantised")
            found[weight.name] = weight
    _refuse_packed(stored.left)
    notes = (*_notes(found.values()), *cache_scales.notes)
    logical = {name: _slot(weight) for name, weight in found.items()}
    tensors = MappingProxyType({**stored.left, **logical})
    return LogicalTensors(tensors, MappingProxyType(found), notes, cache_scales)


def _notes(weights: Iterable[QuantizedTensor]) -> Iterator[str]:
    unrounded = Counter(weight.unrounded for weight in weights if weight.unrounded)
    for rounding, count in unrounded.items():
        yield (
            f"the checkpoint rounds the inputs of {count} products to {rounding}, which is not supported: they are not "
            "rounded"
        )


_REMEDY = "export the original checkpoint"


def _reader(config: Mapping[str, Any]) -> Reader:
    method = config.get("quant_method", "unknown")
    reader = _READERS.get(method) if isinstance(method, str) else None
    if reader is None:
        raise UnsupportedError(
            f"config.json: quantization_config ({method}): expected quant_method to be one of "
            f"{', '.join(_READERS)}: {_REMEDY}"
        )
    return reader


def _refuse_packed(tensors: Mapping[str, TensorSlot]) -> None:
    for slot in tensors.values():
        if slot.dtype in _PACKED:
            raise UnsupportedError(
                f"{slot.path}: tensor {slot.name} is {slot.dtype.value}, quantised in a way that no "
                f"quantization_config describes: {_REMEDY}"
            )


def _slot(weight: QuantizedTensor) -> TensorSlot:
    first = weight.sources[0]
    return TensorSlot(
        weight.name,
        weight.values.dtype,
        weight.model_shape,
        first.path,
        first.offset,
        sum(s.nbytes for s in weight.sources),
    )
