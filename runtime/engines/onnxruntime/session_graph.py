"""A rewritten graph in the form that sessions are made of: bytes, and what fills its weights. Needs no onnx_ir."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hybridge.artifact.dtypes import DType
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
    """The place of an initializer's bytes."""
    dtype = DType.from_onnx(int(tensor.dtype))
    return StoredTensor(str(tensor.location), tensor.offset or 0, dtype, tuple(tensor.shape.numpy()))


@dataclass(frozen=True)
class QuantizedMatrix:
    """A matrix [rows, columns] of numbers of few bits: (values - zero_points) * scales * global_scale.

    scales: [rows, groups], [rows] or []; zero_points as these. global_scale: [rows] or [].
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
# What an initializer has of a QuantizedMatrix: its numbers as float32, or an input of MatMulNBits.
WHOLE, BLOCKS, BLOCK_SCALES, BLOCK_ZEROS = "", "blocks", "block_scales", "block_zeros"


@dataclass(frozen=True)
class GraphWeight:
    """An initializer ``name`` that is filled from ``parts``.

    joined: shape [experts, rows, columns] of the whole where it is made of several parts, one after another, or of
    interleaved rows: the first and the second half of each expert's rows take turns, the first one's first row first.
    shared: it is only multiplied with or looked up in, so that all sessions read one copy.
    form: of a QuantizedMatrix; with ``block``, the kernel's, where it is an input of MatMulNBits.
    """

    name: str
    parts: tuple[Part, ...]
    joined: tuple[int, int, int] | None
    interleaved: bool
    shared: bool
    form: str = WHOLE
    block: int = 0


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
    def float32_bytes(self) -> int:
        """Bytes of all weights, as float32."""
        return sum(4 * math.prod(part.shape) for weight in self.weights if not weight.block for part in weight.parts)


@dataclass(frozen=True)
class DenseGraph(SessionGraph):
    """Of a dense artifact. layouts: how the graph holds each state."""

    layouts: Mapping[str, StateLayout]


@dataclass(frozen=True)
class PagedGraph(SessionGraph):
    """Of a paged artifact.

    parts: pools of which the graph is given the slots of its rows only, in their order. layouts: pool to the order in
    which the graph holds the axes of its declaration, where it is another one. operators: the artifact's recurrent
    operators, and whether their states can be replayed. deferred: the states that the graph leaves unchanged.
    """

    parts: frozenset[str]
    layouts: Mapping[str, tuple[int, ...]]
    operators: Mapping[str, bool]
    deferred: tuple[DeferredState, ...] = ()
