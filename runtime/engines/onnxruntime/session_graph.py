"""A rewritten graph in the form that sessions are made of: bytes, and what fills its weights. Needs no onnx_ir."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.graph_form import StateLayout


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file of the artifact: ``location`` is relative to the folder, ``offset`` in bytes."""

    location: str
    offset: int
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True)
class GraphWeight:
    """An initializer ``name`` that is filled from ``parts``.

    joined: shape [experts, rows, columns] of the whole where it is made of several parts, one after the other, or of
    interleaved rows: the first and the second half of each expert's rows take turns, the first one's first row first.
    shared: it is only multiplied with or looked up in, so that all sessions read one copy.
    """

    name: str
    parts: tuple[StoredTensor, ...]
    joined: tuple[int, int, int] | None
    interleaved: bool
    shared: bool


@dataclass(frozen=True)
class SessionGraph:
    """A serialised model whose external initializers are placeholders for ``weights``.

    inputs: names of its graph inputs. in_place: states whose input and output may share a buffer. layouts: how the
    graph holds each state.
    """

    model: bytes = field(repr=False)
    weights: tuple[GraphWeight, ...]
    inputs: frozenset[str]
    in_place: frozenset[str]
    layouts: Mapping[str, StateLayout]

    @property
    def float32_bytes(self) -> int:
        """Bytes of all weights, as float32."""
        return sum(4 * math.prod(part.shape) for weight in self.weights for part in weight.parts)
