"""Whether the kernels of a network's plugins support the shapes of a step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError, UnsupportedError
from hybridge.artifact.kv_dtypes import E4M3_BYTES
from hybridge.trt_plugins.call_check import TensorType, check_call
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.catalog import plan
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.network.description import PLUGIN, NetworkDescription, NetworkLayer
from hybridge.trt_plugins.plugins.kernel_calls import kernel_call
from hybridge.trt_plugins.plugins.targets import capability_from_text, traits_from_capability
from hybridge.trt_plugins.spec import AttributeValue

_Shape = tuple[int, ...]
_Tensors = tuple[tuple[DType, _Shape], ...]


def plugin_tensors(description: NetworkDescription) -> tuple[str, ...]:
    """The names of all inputs and outputs of plugins."""
    plugins = (layer for layer in description.layers if layer.kind == PLUGIN)
    names = (name for layer in plugins for name in (*layer.inputs, *layer.outputs) if name is not None)
    return tuple(dict.fromkeys(names))


def check_plugin_calls(description: NetworkDescription, shapes: Mapping[str, _Shape]) -> None:
    """EngineError naming a plugin whose kernels do not support ``shapes``, by tensor name, on a GPU of the engine."""
    for layer in description.layers:
        if layer.kind == PLUGIN:
            _check_call(description, layer, shapes)


def _check_call(description: NetworkDescription, layer: NetworkLayer, shapes: Mapping[str, _Shape]) -> None:
    def tensors(names: tuple[str | None, ...]) -> _Tensors:
        present = (name for name in names if name is not None)
        return tuple((_operator_type(description.tensors[name].dtype), shapes[name]) for name in present)

    fields, of = tuple(layer.attributes["fields"].items()), layer.attributes
    inputs, outputs = tensors(layer.inputs), tensors(layer.outputs)
    try:
        for capability in of["capabilities"]:
            _plan_call(of["operator"], of["version"], fields, inputs, outputs, capability)
    except UnsupportedError as error:
        raise EngineError(f"{layer.title}: {error}") from error


@lru_cache(maxsize=1024)
def _plan_call(
    operator: str,
    version: int,
    fields: tuple[tuple[str, AttributeValue], ...],
    inputs: _Tensors,
    outputs: _Tensors,
    capability: str,
) -> None:
    """Plan the call on each GPU of ``capability``; UnsupportedError if no kernel runs it. Layers share results."""
    spec = spec_of(operator, version)
    checked = check_call(spec, [TensorType(*tensor) for tensor in inputs], dict(fields))
    spec.check_kernel_dims(checked.dims)
    given, made = (tuple(TensorLayout.contiguous(*tensor) for tensor in tensors) for tensors in (inputs, outputs))
    call = kernel_call(spec, checked.attributes, given, made)
    for traits in traits_from_capability(capability_from_text(capability)):
        plan(call, traits)


def _operator_type(dtype: DType) -> DType:
    return E4M3_BYTES if dtype is DType.INT8 else dtype
