"""A rewritten graph in the form that sessions are created from: bytes and weights. Needs no onnx_ir."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN
from hybridge.runtime.engines.onnxruntime.graph_form import StateLayout

if TYPE_CHECKING:
    import onnx_ir as ir

    from hybridge.runtime.engines.onnxruntime.deferred_states import DeferredState


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file of the artifact: ``location`` is relative to the folder, ``offset`` in bytes."""

    location: str
    offset: int
    dtype: DType
    shape: tuple[int, ...]


def stored_tensor(tensor: ir.ExternalTensor) -> StoredTensor:
    """The location of an initializer's bytes."""
    dtype = DType.from_onnx(int(tensor.dtype))
    return StoredTensor(str(tensor.location), tensor.offset or 0, dtype, tuple(tensor.shape.numpy()))


@dataclass(frozen=True)
class QuantizedMatrix:
    """A matrix [rows, columns] of numbers of few bits: (values - zero_points) * scales * global_scale.

    scales: [rows, groups], [rows] or []; zero_points: of the same shape. global_scale: [rows] or [].
    """

    values: StoredTensor
    scales: StoredTensor
    zero_points: StoredTensor | None = None
    global_scale: StoredTensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns

    @property
    def location(self) -> str:
        return self.values.location


Part = StoredTensor | QuantizedMatrix
# Bits per number in MatMulNBits, which has no E2M1: twice an E2M1 number is an 8-bit integer.
KERNEL_BITS: Mapping[DType, int] = MappingProxyType({DType.INT4: 4, DType.INT8: 8, DType.FLOAT4E2M1: 8})


def kernel_bits(matrix: QuantizedMatrix) -> int:
    """Bits of each number of ``matrix`` in MatMulNBits, whose type is one of KERNEL_BITS."""
    return KERNEL_BITS[matrix.values.dtype]


# What an initializer holds of its parts: the numbers as float32, the bytes of a StoredTensor as they are, an input of
# MatMulNBits for a QuantizedMatrix, or the scales or zero points of each row of a table.
WHOLE, STORED = "", "stored"
# For the operator Linear: a QuantizedMatrix in tiles, the bytes [rows, n] of a matrix as they are, the scales of a
# QuantizedMatrix for each row, its global scale for each row, and the zero points of tiles.
LINEAR, LINEAR_BYTES, LINEAR_SCALES, LINEAR_FACTORS = "linear", "linear_bytes", "linear_scales", "linear_factors"
LINEAR_ZEROS = "linear_zeros"
BLOCKS, BLOCK_SCALES, BLOCK_ZEROS = "blocks", "block_scales", "block_zeros"
ROW_SCALES, ROW_ZEROS = "row_scales", "row_zeros"


@dataclass(frozen=True)
class GraphWeight:
    """An initializer ``name`` that is filled from ``parts``.

    joined: shape [experts, rows, columns] of the whole where it is made of several parts, one after another, or of
    interleaved rows: the first and the second half of each expert's rows alternate.
    shared: it is only multiplied with or looked up in, so that all sessions read one copy.
    form: WHOLE or another form above. block: the kernel's block size where it is an input of MatMulNBits.
    packed: every session copies it when it is created, and does not read it again.
    """

    name: str
    parts: tuple[Part, ...]
    joined: tuple[int, int, int] | None
    interleaved: bool
    shared: bool
    form: str = WHOLE
    block: int = 0
    packed: bool = False


@dataclass(frozen=True)
class SessionGraph:
    """A serialised model whose external initializers are placeholders for ``weights``.

    inputs: names of its graph inputs. in_place: states or pools whose input and output may share a buffer.
    """

    model: bytes = field(repr=False)
    weights: tuple[GraphWeight, ...]
    inputs: frozenset[str]
    in_place: frozenset[str]

    @property
    def parameters(self) -> int:
        """Numbers in all weights."""
        return sum(math.prod(part.shape) for weight in self.weights for part in weight.parts)

    @property
    def float32_bytes(self) -> int:
        """Bytes of all weights that are float32 in memory."""
        whole = (weight for weight in self.weights if weight.form == WHOLE)
        return sum(4 * math.prod(part.shape) for weight in whole for part in weight.parts)

    def rounding_notes(self, exact: bool) -> tuple[str, ...]:
        """Notes for the user on rounded inputs of quantised weights; none if ``exact``, when inputs are not rounded."""
        count = sum(weight.form in (BLOCKS, LINEAR) for weight in self.weights)
        if exact or not count:
            return ()
        return (
            f"inputs of {count} products with weights of 4 or 8 bits are rounded to 8 bits (not with "
            "`exact_products=True`)",
        )

    @property
    def uses_cpu_library(self) -> bool:
        """Whether a session needs the library of cpu_library.py: the model names the domain of its operators."""
        return CPU_DOMAIN.encode() in self.model

    @property
    def block_bytes(self) -> int:
        """Bytes of the numbers that MatMulNBits reads, without scales."""
        parts = (part for weight in self.weights if weight.form == BLOCKS for part in weight.parts)
        return sum(
            kernel_bits(part) * math.prod(part.shape) // 8 for part in parts if isinstance(part, QuantizedMatrix)
        )


@dataclass(frozen=True)
class DenseGraph(SessionGraph):
    """The graph of a dense artifact. layouts: how the graph holds each state."""

    layouts: Mapping[str, StateLayout]


@dataclass(frozen=True)
class PagedGraph(SessionGraph):
    """The graph of a paged artifact.

    parts: pools of which the graph gets only the slots of its rows, in their order. layouts: pool to the order of its
    declared axes in the graph, where that differs. operators: the artifact's recurrent
    operators, and whether their states can be replayed. deferred: the states that the graph leaves unchanged.
    """

    parts: frozenset[str]
    layouts: Mapping[str, tuple[int, ...]]
    operators: Mapping[str, bool]
    deferred: tuple[DeferredState, ...] = ()
