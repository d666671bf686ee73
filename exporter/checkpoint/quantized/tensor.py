"""A quantised weight in the form that the graph has, whatever the format in which the checkpoint stores it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.safetensors_file import TensorSlot

# Bytes of a converted tensor that are computed at once.
_BLOCK_BYTES = 1 << 22
_KINDS: Mapping[DType, str] = MappingProxyType({DType.INT8: "int8", DType.FLOAT8E4M3FN: "fp8", DType.FLOAT4E2M1: "fp4"})


@dataclass(frozen=True)
class GraphTensor:
    """An initializer. One of these gives its bytes:

    stored: a tensor of the checkpoint.
    rows_apart: a tensor [rows, ...] of the checkpoint whose rows with even numbers come first, then the others.
    parts: tensors one after another.
    blocks: arrays whose bytes follow each other in the tensor; made anew by each call, so that none stays in memory.
    repeats: how often those bytes, of few elements, follow each other.
    """

    dtype: DType
    shape: tuple[int, ...]
    stored: TensorSlot | None = None
    rows_apart: TensorSlot | None = None
    parts: tuple[GraphTensor, ...] = ()
    blocks: Callable[[], Iterator[np.ndarray]] | None = None
    repeats: int = 1

    def pieces(self) -> Iterator[np.ndarray]:
        """The bytes of the tensor in order, in arrays of a few megabytes each."""
        if self.repeats == 1:
            yield from self._pieces()
        else:
            yield np.tile(np.concatenate([byte_view(piece) for piece in self._pieces()]), self.repeats)

    def _pieces(self) -> Iterator[np.ndarray]:
        if self.blocks is not None:
            yield from self.blocks()
            return
        if self.parts:
            for tensor in self.parts:
                yield from tensor.pieces()
            return
        if self.rows_apart is not None:
            rows = self.rows_apart.shape[0]
            whole = replace(self.rows_apart, dtype=DType.UINT8, shape=(rows, self.rows_apart.nbytes // rows)).map()
            for half in (whole[0::2], whole[1::2]):
                yield from (half[part] for part in row_ranges(len(half), whole.shape[1]))
            return
        assert self.stored is not None
        raw = replace(self.stored, dtype=DType.UINT8)
        for part in row_ranges(raw.nbytes, 1):  # mapped one by one, to unmap pages that were read
            nbytes = part.stop - part.start
            yield replace(raw, shape=(nbytes,), offset=raw.offset + part.start, nbytes=nbytes).map()


@dataclass(frozen=True)
class InputRounding:
    """How inputs x [..., columns] of a product are rounded: to numbers of type ``dtype`` times scales.

    group: features of a token that share a scale, computed from the largest magnitude among them; 0: all features of
    the token; None: ``scale`` is the scale of all tokens.
    scale: float [] or None, of experts float32 [experts]; for FLOAT4E2M1 the factor of the groups' scales, which are
    e4m3 numbers.
    """

    dtype: DType
    group: int | None
    scale: GraphTensor | None = None

    @property
    def name(self) -> str:
        """For reports."""
        way = "static" if self.group is None else f"dynamic, by {self.group or 'token'}"
        return f"{_KINDS[self.dtype]} ({way})"


@dataclass(frozen=True)
class QuantizedTensor:
    """A matrix [rows, columns] of numbers of few bits. Element (n, k) is

        (values[n, k] - zero_points[n, k // block]) * scales[n, k // block]

    scales: [rows, columns / block]; of one scale per row (block None) [rows], of one scale for all [].
    zero_points: as scales, of the type of ``values``; None: all are zero.
    global_scale: float32 [] or [rows], by which ``scales`` are multiplied.
    order: int64 [columns]; column k of ``values`` belongs to the input's feature order[k]. None: to feature k.
    factors: [columns], by which the input's features are multiplied first.
    inputs: how inputs are rounded; None: not at all.
    unrounded: the unsupported rounding of inputs that the checkpoint asks for, in words; empty: none.
    format: its name for reports. sources: the checkpoint's tensors that it is read from, that of ``values`` first.
    rounded: the export rounds the full-precision weight in ``sources``.
    experts: the model's weight is [experts, rows / experts, columns]; None: it is the matrix.
    """

    name: str
    format: str
    shape: tuple[int, int]
    values: GraphTensor
    scales: GraphTensor
    block: int | None
    sources: tuple[TensorSlot, ...]
    zero_points: GraphTensor | None = None
    global_scale: GraphTensor | None = None
    order: GraphTensor | None = None
    factors: GraphTensor | None = None
    inputs: InputRounding | None = None
    unrounded: str = ""
    rounded: bool = False
    experts: int | None = None

    @property
    def model_shape(self) -> tuple[int, ...]:
        """The shape of the model's parameter."""
        rows, columns = self.shape
        return self.shape if self.experts is None else (self.experts, rows // self.experts, columns)

    @property
    def parts(self) -> dict[str, GraphTensor]:
        """The initializers by the last part of their names."""
        named = {
            "weight": self.values,
            "weight_scale": self.scales,
            "weight_zero_point": self.zero_points,
            "weight_global_scale": self.global_scale,
            "weight_order": self.order,
            "pre_quant_scale": self.factors,
            "input_scale": None if self.inputs is None else self.inputs.scale,
        }
        return {suffix: tensor for suffix, tensor in named.items() if tensor is not None}


def byte_view(array: np.ndarray) -> np.ndarray:
    """The bytes of ``array``: uint8 [nbytes]."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def row_ranges(rows: int, row_bytes: int) -> Iterator[slice]:
    """Ranges of rows of a few megabytes each; all but the last have a multiple of 8 rows."""
    step = max(8, _BLOCK_BYTES // max(1, row_bytes) // 8 * 8)
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))
