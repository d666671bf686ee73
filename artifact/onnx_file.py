"""Reading model.onnx or mtp.onnx: checks its size and the locations of its weights before use."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ArtifactError, UnsupportedError
from hybridge.artifact.limits import LARGEST_INTEGER, ONNX_BYTES, TENSOR_AXES
from hybridge.artifact.untrusted_file import open_inside, read_inside, size_of

_REMEDY = "export the checkpoint again"


@dataclass(frozen=True)
class OnnxFile:
    """A graph and the file's bytes, of which engines keep a hash."""

    model: onnx.ModelProto
    raw: bytes


@dataclass(frozen=True)
class StoredWeight:
    """An initializer [shape] that is in another file of the artifact, ``nbytes`` bytes from ``offset`` on."""

    name: str
    location: str
    offset: int
    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(math.prod(self.shape))


def read_onnx(folder: Path, file: str) -> OnnxFile:
    """The graph ``file`` of the artifact ``folder``, weights by reference; their files need not be there.

    ArtifactError: the file is missing, too large or no ONNX model, or a weight has an invalid location or shape.
    """
    path = folder / file
    raw = read_inside(folder, file, ONNX_BYTES, remedy=_REMEDY)
    try:
        model = onnx.load_model_from_string(raw)
    except (DecodeError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: expected an ONNX model ({error}): {_REMEDY}") from error
    stored_weights(model, str(path))
    return OnnxFile(model, raw)


def stored_weights(model: onnx.ModelProto, where: str) -> tuple[StoredWeight, ...]:
    """The weights of ``model`` in other files; ArtifactError, which begins with ``where``, for an invalid one."""
    for tensor in _hidden_tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ArtifactError(
                f"{where}: expected weights in other files only as initializers of the main graph, found "
                f"{tensor.name!r}: {_REMEDY}"
            )
    external = (t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL)
    return tuple(_stored_weight(tensor, where) for tensor in external)


def check_stored_weights(folder: Path, model: onnx.ModelProto, file: str) -> None:
    """ArtifactError unless every weight is in a file inside of ``folder`` that is long enough."""
    sizes: dict[str, int] = {}
    for weight in stored_weights(model, str(folder / file)):
        if weight.location not in sizes:
            with open_inside(folder, weight.location, None, remedy=_REMEDY) as opened:
                sizes[weight.location] = size_of(opened)
        end = weight.offset + weight.nbytes
        if end > sizes[weight.location]:
            raise ArtifactError(
                f"{folder / weight.location}: expected at least {end} bytes for {weight.name}, found "
                f"{sizes[weight.location]}: the file is truncated: {_REMEDY}"
            )


def _stored_weight(tensor: onnx.TensorProto, where: str) -> StoredWeight:
    where = f"{where}: weight {tensor.name!r}"
    entries = {item.key: item.value for item in tensor.external_data}
    # Protobuf gives a string that is no UTF-8 as bytes.
    if not all(isinstance(text, str) for text in (tensor.name, *entries, *entries.values())):
        raise ArtifactError(f"{where}: expected names and locations in UTF-8, found other bytes: {_REMEDY}")
    location, shape = entries.get("location", ""), tuple(tensor.dims)
    pure = PurePosixPath(location)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in location:
        raise ArtifactError(f"{where}: expected a file inside the artifact, found {location[:200]!r}: {_REMEDY}")
    if len(shape) > TENSOR_AXES or any(size < 0 for size in shape):
        raise ArtifactError(
            f"{where}: expected at most {TENSOR_AXES} sizes of at least 0, found {list(shape[:9])}: {_REMEDY}"
        )
    try:
        dtype = DType.from_onnx(tensor.data_type)
    except UnsupportedError as error:
        raise ArtifactError(f"{where}: {error}: {_REMEDY}") from error
    weight = StoredWeight(tensor.name, location, _count(entries, "offset", 0, where), dtype, shape)
    if weight.offset + weight.nbytes > LARGEST_INTEGER:
        raise ArtifactError(f"{where}: expected a size that a file can have, found {list(shape)}: {_REMEDY}")
    if (length := _count(entries, "length", weight.nbytes, where)) != weight.nbytes:
        raise ArtifactError(f"{where}: expected length {weight.nbytes} for {list(shape)}, found {length}: {_REMEDY}")
    return weight


def _count(entries: Mapping[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= LARGEST_INTEGER):
        raise ArtifactError(f"{where}: expected a number of bytes as {key}, found {text[:200]!r}: {_REMEDY}")
    return int(text)


def _hidden_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor that is not an initializer of the main graph."""
    for function in model.functions:
        yield from _node_tensors(function.node)
        yield from _attribute_tensors(function.attribute_proto)
    for training in model.training_info:
        yield from _graph_tensors(training.initialization)
        yield from _graph_tensors(training.algorithm)
    yield from _sparse_tensors(model.graph.sparse_initializer)
    yield from _node_tensors(model.graph.node)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    yield from _sparse_tensors(graph.sparse_initializer)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Any) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        yield from _attribute_tensors(node.attribute)


def _attribute_tensors(attributes: Any) -> Iterator[onnx.TensorProto]:
    # The parser refuses messages nested deeper than 100 levels, so that this ends.
    for attribute in attributes:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        yield from _sparse_tensors([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else [])
        yield from _sparse_tensors(attribute.sparse_tensors)
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from _graph_tensors(graph)


def _sparse_tensors(tensors: Any) -> Iterator[onnx.TensorProto]:
    for tensor in tensors:
        yield tensor.values
        yield tensor.indices
