"""TensorRT's callbacks of a plugin: conversions between its classes and ``OpPlugin``, with a guard for each.

A callback that fails raises after it has recorded the error: raising is the only failure that TensorRT's Python
interface knows, and it drops the text. The classes here have no base of TensorRT's; ``interfaces`` joins them with
those of the module in use, which is their attribute ``trt``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError, HybridgeError
from hybridge.trt_plugins.kernels.handles import device_address, device_addresses, stream_handle
from hybridge.trt_plugins.kernels.launcher import BoundPlan
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.source import sources_digest
from hybridge.trt_plugins.plugins.calls import CallRange
from hybridge.trt_plugins.plugins.data_types import operator_dtype, trt_from_dtype
from hybridge.trt_plugins.plugins.errors import PluginErrors
from hybridge.trt_plugins.plugins.fields import make_fields
from hybridge.trt_plugins.plugins.layer import state_inputs
from hybridge.trt_plugins.plugins.op_plugin import OpPlugin

NO_ALIAS = -1


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Record what ``method`` raises, as an error that names operator, layer and shapes, and raise that."""

    @wraps(method)
    def call(plugin: Any, *arguments: Any) -> Any:
        try:
            return method(plugin, *arguments)
        except Exception as error:
            raise recorded(plugin, method.__name__, error) from error

    return call


def recorded(plugin: Callbacks, where: str, error: Exception) -> EngineError:
    """``error`` in words, kept in the plugin's errors."""
    core = plugin.core
    shapes = core.shapes_text()
    text = str(error) if isinstance(error, HybridgeError) else f"{type(error).__name__}: {error}"
    described = EngineError(
        f"plugin {core.layer.spec.name} of layer {core.layer.name}, {where}"
        f"{f' with {shapes}' if shapes else ''}: {text}"
    )
    plugin.errors.record(described)
    return described


class Callbacks:
    """One layer's plugin; ``core`` knows the operator, ``errors`` outlives every plugin, ``trt`` is the module."""

    trt: Any
    core: OpPlugin
    errors: PluginErrors


class BuildCallbacks(Callbacks):
    """Asked while an engine is built: types, shapes, formats, workspace, aliases, tactics."""

    timing_cache_id: str

    @guarded
    def get_output_data_types(self, input_types: Sequence[Any]) -> list[Any]:
        found = self.core.output_dtypes([operator_dtype(t) for t in input_types])
        return [trt_from_dtype(self.trt, dtype) for dtype in found]

    @guarded
    def get_output_shapes(self, inputs: Sequence[Any], shape_inputs: Sequence[Any], expr_builder: Any) -> list[Any]:
        spec = self.core.layer.spec
        return [self.trt.DimsExprs(inputs[spec.output_source(output)]) for output in spec.outputs]

    @guarded
    def supports_format_combination(self, pos: int, in_out: Sequence[Any], num_inputs: int) -> bool:
        if in_out[pos].desc.format != self.trt.TensorFormat.LINEAR:
            return False
        return self.core.supports(pos, [operator_dtype(tensor.desc.type) for tensor in in_out[: pos + 1]])

    @guarded
    def configure_plugin(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        calls = self._call_range(inputs)
        self.core.configure(calls)
        self.timing_cache_id = self.timing_name(calls)

    @guarded
    def get_workspace_size(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
        return self.core.workspace_bytes(self._call_range(inputs))

    @guarded
    def get_aliased_input(self, output_index: int) -> int:
        layer = self.core.layer
        return state_inputs(layer.spec).get(output_index, NO_ALIAS) if layer.aliased else NO_ALIAS

    @guarded
    def get_valid_tactics(self) -> list[int]:
        return list(self.core.tactics())

    def timing_name(self, calls: CallRange | None = None) -> str:
        """Key of timings of this plugin, besides shapes: operator and form, attributes, types, and the timed tactic."""
        layer = self.core.layer
        attributes = ",".join(f"{name}={value}" for name, value in layer.attributes.items())
        types = ",".join(f"{name}={dtype.value}" for name, dtype in calls.types) if calls else ""
        kernels = f"{self.trt.__name__} {self.trt.__version__} kernels {sources_digest()}"
        return f"{layer.spec.qualified_name} {layer.spec.version} [{attributes}] [{types}] {kernels}"

    def _call_range(self, inputs: Sequence[Any]) -> CallRange:
        dtypes = [operator_dtype(tensor.desc.type) for tensor in inputs]
        return self.core.call_range(dtypes, [tuple(t.min) for t in inputs], [tuple(t.max) for t in inputs])


class RuntimeCallbacks(Callbacks):
    """Asked where an engine runs, and while tactics are timed."""

    _fields: list[Any]

    @guarded
    def set_tactic(self, tactic: int) -> None:
        self.core.choose(tactic)

    @guarded
    def get_fields_to_serialize(self) -> Any:
        layer = self.core.layer
        fields = make_fields(self.trt, layer.spec, layer.field_values())
        self._fields.extend(fields)
        return self.trt.PluginFieldCollection(fields)

    @guarded
    def on_shape_change(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self._prepare(inputs, outputs)

    # Python's time here is time that the next layer waits: nothing is done that _prepare can do.
    def enqueue(
        self,
        input_desc: Sequence[Any],
        output_desc: Sequence[Any],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        workspace: Any,
        stream: Any,
    ) -> None:
        """Launch on ``stream``. TensorRT passes integers; any stream or pointer object will do."""
        try:
            launches = self.core.bound or self._prepare(input_desc, output_desc)
            launches.launch(
                stream if type(stream) is int else stream_handle(stream),
                device_addresses(inputs),
                device_addresses(outputs),
                workspace if type(workspace) is int else device_address(workspace),
            )
        except Exception as error:
            raise recorded(self, "enqueue", error) from error

    def _prepare(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> BoundPlan:
        return self.core.prepare([_layout(tensor) for tensor in inputs], [_layout(tensor) for tensor in outputs])


def _layout(desc: Any) -> TensorLayout:
    """The layout of a ``trt.PluginTensorDesc``, which is linear: contiguous."""
    dtype = operator_dtype(desc.type)
    assert isinstance(dtype, DType), desc.type  # supports_format_combination admits no other
    return TensorLayout.contiguous(dtype, tuple(desc.dims))
