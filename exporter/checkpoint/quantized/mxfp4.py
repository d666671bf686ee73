"""Experts of quant_method "mxfp4", as gpt-oss has them.

X_blocks [experts, rows, columns / 32, 16]: bytes of two e2m1 numbers, the first in the low half. X_scales [experts,
rows, columns / 32]: exponents. In gate_up_proj, rows of the gate and of what it gates take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint.quantized.experts import read_experts, rows_apart
from hybridge.exporter.checkpoint.quantized.scaled import as_stored, power_of_two_scales
from hybridge.exporter.checkpoint.quantized.settings import settings_of
from hybridge.exporter.checkpoint.quantized.stored import StoredTensors, matrix_shape
from hybridge.exporter.checkpoint.quantized.targets import check_names, names_of
from hybridge.exporter.checkpoint.quantized.tensor import QuantizedTensor

_BLOCK, _BLOCK_BYTES = 32, 16
_UNUSED = ("quant_method", "dequantize")


def read_mxfp4(config: Mapping[str, Any], stored: StoredTensors) -> Iterator[QuantizedTensor]:
    """The weights of a checkpoint with the quantization_config ``config``.

    UnsupportedError: an unsupported setting. CheckpointError: the tensors contradict the config.
    """
    fields = settings_of(config, _UNUSED)
    excluded = names_of(fields, "modules_to_not_convert")
    fields.refuse_unknown()
    check_names(excluded, stored.all_modules, "modules_to_not_convert")
    for blocks in [name for name in sorted(stored.left) if name.endswith("_blocks")]:
        name = blocks.removesuffix("_blocks")
        stored.left[blocks] = _rows_of_bytes(stored.left[blocks])
        yield read_experts(name, {"blocks": blocks, "scales": f"{name}_scales"}, _expert, stored)


def _rows_of_bytes(slot: TensorSlot) -> TensorSlot:
    """[experts, rows, blocks, 16] as [experts, rows, bytes]."""
    if len(slot.shape) != 4 or slot.shape[3] != _BLOCK_BYTES:
        raise CheckpointError(f"{slot.name}: expected [experts, rows, blocks, 16], found shape {list(slot.shape)}")
    return replace(slot, shape=(*slot.shape[:2], slot.shape[2] * _BLOCK_BYTES))


def _expert(name: str, stored: StoredTensors) -> QuantizedTensor:
    blocks = stored.take(f"{name}.blocks", DType.UINT8)
    rows, columns = matrix_shape(blocks)[0], 2 * matrix_shape(blocks)[1]
    scales = stored.take(f"{name}.scales", DType.UINT8, shape=(rows, columns // _BLOCK))
    weight = QuantizedTensor(
        name,
        "mxfp4",
        (rows, columns),
        as_stored(blocks, DType.FLOAT4E2M1, (rows, columns)),
        power_of_two_scales(scales),
        _BLOCK,
        (blocks, scales),
    )
    return rows_apart(weight) if name.endswith("gate_up_proj") else weight
