"""Reads a parsed ``INetworkDefinition`` into a ``NetworkDescription``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.network.constant_bytes import constant_bytes
from hybridge.trt_plugins.network.description import (
    CONSTANT,
    LOOP,
    LOOP_KINDS,
    PLUGIN,
    NetworkDescription,
    NetworkLayer,
    NetworkTensor,
)
from hybridge.trt_plugins.network.layer_attributes import attributes_of, show_kind
from hybridge.trt_plugins.plugins.data_types import dtype_from_trt

# Types of weights and activations that are never states or operator inputs of an artifact.
_QUANTISED = {"FP8": DType.FLOAT8E4M3FN, "INT4": DType.INT4, "FP4": DType.FLOAT4E2M1}
_ALIGNMENT = 64


def read_network(trt: Any, network: Any, constants: BinaryIO) -> NetworkDescription:
    """The layers of ``network``, which the module ``trt`` parsed; bytes of its constants are written to ``constants``.

    EngineError: two tensors have one name, or a tensor has a type that no artifact has.
    """
    reader = _Reader(trt, constants)
    inputs = [reader.tensor(network.get_input(index)) for index in range(network.num_inputs)]
    layers = [reader.layer(network.get_layer(index)) for index in range(network.num_layers)]
    outputs = [reader.tensor(network.get_output(index)) for index in range(network.num_outputs)]
    return NetworkDescription(tuple(layers), reader.tensors, tuple(inputs), tuple(outputs), reader.constants)


class _Reader:
    def __init__(self, trt: Any, constants: BinaryIO) -> None:
        self._trt, self._file = trt, constants
        self.tensors: dict[str, NetworkTensor] = {}
        self.constants: dict[str, tuple[int, int]] = {}
        # One object for each loop: kept, so that the binding returns the same one for each of its layers.
        self._loops: list[Any] = []

    def tensor(self, tensor: Any) -> str:
        """Records the tensor and returns its name."""
        name, shape = tensor.name, tuple(int(size) for size in tensor.shape)
        dtype = dtype_from_trt(tensor.dtype) or _QUANTISED.get(tensor.dtype.name)
        if dtype is None:
            raise EngineError(f"tensor {name}: expected a type that artifacts have, found {tensor.dtype.name}")
        found = NetworkTensor(name, dtype, shape)
        if self.tensors.setdefault(name, found) != found:
            raise EngineError(f"expected one tensor of the name {name} in the network, found two: report this")
        return name

    def layer(self, layer: Any) -> NetworkLayer:
        """The layer's description; the bytes of a constant are written to the file."""
        kind, name, origin = layer.type.name, layer.name, getattr(layer, "metadata", "")
        inputs = tuple(None if tensor is None else self.tensor(tensor) for tensor in _inputs(layer))
        outputs = tuple(self.tensor(layer.get_output(index)) for index in range(layer.num_outputs))
        show_kind(self._trt, layer, kind)
        attributes = attributes_of(layer, kind)
        if kind == CONSTANT:
            self._write(outputs[0], layer.weights)
        if kind in LOOP_KINDS:
            attributes[LOOP] = self._loop(layer.loop)
        if kind == PLUGIN:
            attributes |= _plugin_attributes(layer.plugin)
        return NetworkLayer(kind, name, inputs, outputs, attributes, origin)

    def _write(self, name: str, weights: Any) -> None:
        self._file.write(b"\0" * (-self._file.tell() % _ALIGNMENT))
        content = constant_bytes(weights, self.tensors[name].dtype)
        self.constants[name] = (self._file.tell(), len(content))
        self._file.write(content)

    def _loop(self, loop: Any) -> int:
        for index, known in enumerate(self._loops):
            if known is loop:
                return index
        self._loops.append(loop)
        return len(self._loops) - 1


def _inputs(layer: Any) -> Iterator[Any]:
    return (layer.get_input(index) for index in range(layer.num_inputs))


def _plugin_attributes(plugin: Any) -> dict[str, Any]:
    """The plugin's parsed fields: operator, version, attributes, whether it updates states in place, and its GPUs."""
    core = getattr(plugin, "core", None)
    if core is None:
        raise EngineError(f"expected a plugin of this project in the network, found {type(plugin).__name__}")
    layer = core.layer
    return {
        "operator": layer.spec.name,
        "version": layer.spec.version,
        "fields": dict(layer.attributes),
        "aliased": layer.aliased,
        "capabilities": list(layer.capabilities),
    }
