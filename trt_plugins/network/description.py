"""A parsed network as plain data, which needs no TensorRT to be read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError

# Kinds of layers that the code compares by name.
CONSTANT, KV_CACHE_UPDATE, PLUGIN = "CONSTANT", "KV_CACHE_UPDATE", "PLUGIN_V3"
LOOP_OUTPUT, RECURRENCE, ITERATOR, TRIP_LIMIT = "LOOP_OUTPUT", "RECURRENCE", "ITERATOR", "TRIP_LIMIT"
LOOP_KINDS = (TRIP_LIMIT, RECURRENCE, ITERATOR, LOOP_OUTPUT)
# The attribute of these that identifies their loop.
LOOP = "loop"


@dataclass(frozen=True)
class NetworkTensor:
    """A tensor between layers: its type, and its shape as TensorRT infers it, -1 where it depends on the inputs."""

    name: str
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True)
class NetworkLayer:
    """One layer. ``kind``: TensorRT's name of its type, such as MATRIX_MULTIPLY.

    inputs, outputs: names of tensors, None for an input that is left out. attributes: enumerators by name, dimensions
    as lists. origin: the ONNX node that the parser made it of.
    """

    kind: str
    name: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    origin: str = ""

    @property
    def title(self) -> str:
        """The layer's name in messages."""
        return f"layer {self.name} ({self.kind})"


@dataclass(frozen=True)
class NetworkDescription:
    """All layers in the order of the network, and all tensors by name.

    inputs, outputs: names of the network's own. constants: byte offset in the file of constants and length, by the
    name of the tensor; numbers of 4 bits are packed, the first in the low half.
    """

    layers: tuple[NetworkLayer, ...]
    tensors: Mapping[str, NetworkTensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, tuple[int, int]]

    def as_json(self) -> dict[str, Any]:
        """A JSON value that ``from_json`` reads back."""
        return {
            "layers": [asdict(layer) for layer in self.layers],
            "tensors": [[t.name, t.dtype.value, list(t.shape)] for t in self.tensors.values()],
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "constants": dict(self.constants),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> NetworkDescription:
        """The inverse of ``as_json``."""
        layers = (
            NetworkLayer(**{**layer, "inputs": tuple(layer["inputs"]), "outputs": tuple(layer["outputs"])})
            for layer in value["layers"]
        )
        tensors = (NetworkTensor(name, DType(dtype), tuple(shape)) for name, dtype, shape in value["tensors"])
        return cls(
            tuple(layers),
            {tensor.name: tensor for tensor in tensors},
            tuple(value["inputs"]),
            tuple(value["outputs"]),
            {name: (offset, nbytes) for name, (offset, nbytes) in value["constants"].items()},
        )


def producers(layers: Iterable[NetworkLayer]) -> dict[str, int]:
    """Tensor to the index of the layer that computes it; EngineError: two layers compute tensors of the same name."""
    found: dict[str, int] = {}
    for index, layer in enumerate(layers):
        for name in layer.outputs:
            if name in found:
                raise EngineError(
                    f"expected one layer with the output {name}, found {layer.title} as well: report this"
                )
            found[name] = index
    return found
