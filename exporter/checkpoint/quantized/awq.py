"""Weights as AutoAWQ stores them: int32 words of 8 consecutive output features, in its GEMM kernel's order.

X.qweight [columns, rows / 8], X.scales [groups, rows] and X.qzeros [groups, rows / 8].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint.quantized.nibbles import unpacked_words
from hybridge.exporter.checkpoint.quantized.packed_integers import (
    integer_values,
    row_block,
    scales_of_rows,
    transposed_scales,
    zero_points,
)
from hybridge.exporter.checkpoint.quantized.settings import WHERE, settings_of
from hybridge.exporter.checkpoint.quantized.stored import SCALE_TYPES, StoredTensors, check_groups, matrix_shape
from hybridge.exporter.checkpoint.quantized.tensor import QuantizedTensor

# The position in a word, from the lowest bits on, of each of the 8 output features.
_POSITIONS = np.array([0, 4, 1, 5, 2, 6, 3, 7])
_UNUSED = (
    *("quant_method", "zero_point", "modules_to_not_convert", "do_fuse", "fuse_max_seq_len", "modules_to_fuse"),
    *("exllama_config", "backend", "version"),
)


def read_awq(config: Mapping[str, Any], stored: StoredTensors) -> Iterator[QuantizedTensor]:
    """The weights of a checkpoint with the quantization_config ``config``.

    UnsupportedError: an unsupported setting. CheckpointError: the tensors contradict the config.
    """
    fields = settings_of(config, _UNUSED)
    # The versions for GEMV and Marlin kernels use other orders.
    version = fields.string("version", None) or "gemm"
    bits, group = fields.integer("bits"), fields.integer("group_size")
    if bits != 4 or version.lower() != "gemm":
        raise UnsupportedError(f"{WHERE}: expected bits 4 and version gemm, found {bits} and {version!r}")
    if group != -1 and group < 1:
        raise fields.fail("group_size", "a positive number of columns, or -1")
    fields.refuse_unknown()
    for module in stored.modules("qweight"):
        yield _weight(module, group, stored)


def _weight(module: str, group: int, stored: StoredTensors) -> QuantizedTensor:
    name = f"{module}.weight"
    words = stored.take(f"{module}.qweight", DType.INT32)
    columns, rows = matrix_shape(words)[0], matrix_shape(words)[1] * 8
    groups = check_groups(words.name, columns, columns if group == -1 else group)
    scale = stored.take(f"{module}.scales", *SCALE_TYPES, shape=(groups, rows))
    zeros = stored.take(f"{module}.qzeros", DType.INT32, shape=(groups, rows // 8))
    block = row_block(4, columns) if group == -1 else group
    scales = scales_of_rows(scale, rows, columns, block) if group == -1 else transposed_scales(scale, rows)
    return QuantizedTensor(
        name,
        "awq int4",
        (rows, columns),
        integer_values(name, 4, (rows, columns), lambda part: _rows(words, part)),
        scales,
        block,
        (words, scale, zeros),
        zero_points(4, lambda: _rows(zeros, slice(0, rows)), scales.shape),
    )


def _rows(slot: TensorSlot, part: slice) -> np.ndarray:
    """The rows ``part``, which starts at a multiple of 8, of ``slot`` (words [columns, m]): unsigned, [n, columns]."""
    words = slot.map()[:, part.start // 8 : -(-part.stop // 8)]
    numbers = unpacked_words(words, 4).reshape(len(words), -1, 8)[:, :, _POSITIONS]
    return numbers.reshape(len(words), -1).T
