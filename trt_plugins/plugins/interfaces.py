"""TensorRT's plugin classes around ``OpPlugin``: conversions and the guard of every callback.

A callback that fails raises after it has recorded the error: raising is the only failure that TensorRT's Python
interface knows, and it drops the text. ``clone`` and ``get_capability_interface`` cannot fail: TensorRT crashes when
they do, so they only copy and return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from artifact.dtypes import DType
from artifact.errors import EngineError, HybridgeError
from trt_plugins.kernels.handles import device_address, device_addresses, stream_handle
from trt_plugins.kernels.layout import TensorLayout
from trt_plugins.plugins.aliasing import build_interface
from trt_plugins.plugins.data_types import dtype_from_trt, trt_from_dtype
from trt_plugins.plugins.errors import PluginErrors
from trt_plugins.plugins.fields import make_fields
from trt_plugins.plugins.layer import state_inputs
from trt_plugins.plugins.op_plugin import OpPlugin

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


def recorded(plugin: Any, where: str, error: Exception) -> EngineError:
    """``error`` in words, kept in the plugin's errors."""
    core: OpPlugin = plugin.core
    shapes = core.shapes_text()
    text = str(error) if isinstance(error, HybridgeError) else f"{type(error).__name__}: {error}"
    described = EngineError(
        f"plugin {core.layer.spec.name} of layer {core.layer.name}, {where}"
        f"{f' with {shapes}' if shapes else ''}: {text}"
    )
    plugin.errors.record(described)
    return described


def make_plugin_class(trt: Any) -> type:
    """The class of all plugins of this project in the TensorRT module ``trt``; made once per module."""
    bases = (trt.IPluginV3, trt.IPluginV3OneCore, build_interface(trt), trt.IPluginV3OneRuntime)

    class TensorRTPlugin(*bases):  # type: ignore[misc]
        """One layer's plugin; ``core`` knows the operator, ``errors`` outlives every plugin."""

        def __init__(self, core: OpPlugin, errors: PluginErrors) -> None:
            for base in bases:
                base.__init__(self)
            self.core, self.errors = core, errors
            spec = core.layer.spec
            self.plugin_name, self.plugin_namespace = spec.name, spec.domain
            self.plugin_version = str(spec.version)
            self.num_outputs = len(spec.outputs)
            # The planner chooses kernels by shape and GPU: there are no tactics to time, and nothing to cache but this.
            self.timing_cache_id = f"{spec.qualified_name}:{spec.version}:{dict(core.layer.attributes)}"
            self.metadata_string = f"{spec.qualified_name} {dict(core.layer.attributes)}"
            # TensorRT keeps pointers to serialized fields.
            self._fields: list[Any] = []

        def get_capability_interface(self, type: Any) -> Any:
            return self

        def clone(self) -> Any:
            return TensorRTPlugin(self.core.clone(), self.errors)

        @guarded
        def attach_to_context(self, resource_context: Any) -> Any:
            return self.clone()

        @guarded
        def get_output_data_types(self, input_types: Sequence[Any]) -> list[Any]:
            return [trt_from_dtype(trt, d) for d in self.core.output_dtypes([dtype_from_trt(t) for t in input_types])]

        @guarded
        def get_output_shapes(self, inputs: Sequence[Any], shape_inputs: Sequence[Any], expr_builder: Any) -> list[Any]:
            spec = self.core.layer.spec
            return [trt.DimsExprs(inputs[spec.output_source(output)]) for output in spec.outputs]

        @guarded
        def supports_format_combination(self, pos: int, in_out: Sequence[Any], num_inputs: int) -> bool:
            if in_out[pos].desc.format != trt.TensorFormat.LINEAR:
                return False
            return self.core.supports(pos, [dtype_from_trt(tensor.desc.type) for tensor in in_out[: pos + 1]])

        @guarded
        def configure_plugin(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            self._call_range(inputs)

        @guarded
        def get_workspace_size(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
            return self.core.workspace_bytes(self._call_range(inputs))

        @guarded
        def get_aliased_input(self, output_index: int) -> int:
            layer = self.core.layer
            return state_inputs(layer.spec).get(output_index, NO_ALIAS) if layer.aliased else NO_ALIAS

        @guarded
        def get_valid_tactics(self) -> list[int]:
            return []

        @guarded
        def set_tactic(self, tactic: int) -> None:
            if tactic:
                raise EngineError(f"expected no tactic, found {tactic}: build the engine again")

        @guarded
        def get_fields_to_serialize(self) -> Any:
            layer = self.core.layer
            fields = make_fields(trt, layer.spec, layer.field_values())
            self._fields.extend(fields)
            return trt.PluginFieldCollection(fields)

        @guarded
        def on_shape_change(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            self._prepare(inputs, outputs)

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
                if self.core.bound is None:
                    self._prepare(input_desc, output_desc)
                self.core.launch(
                    stream if type(stream) is int else stream_handle(stream),
                    device_addresses(inputs),
                    device_addresses(outputs),
                    workspace if type(workspace) is int else device_address(workspace),
                )
            except Exception as error:
                raise recorded(self, "enqueue", error) from error

        def _prepare(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            self.core.prepare([_layout(tensor) for tensor in inputs], [_layout(tensor) for tensor in outputs])

        def _call_range(self, inputs: Sequence[Any]) -> Any:
            dtypes = [dtype_from_trt(tensor.desc.type) for tensor in inputs]
            return self.core.call_range(dtypes, [tuple(t.min) for t in inputs], [tuple(t.max) for t in inputs])

    return TensorRTPlugin


def _layout(desc: Any) -> TensorLayout:
    """The layout of a ``trt.PluginTensorDesc``, which is linear: contiguous."""
    dtype = dtype_from_trt(desc.type)
    assert isinstance(dtype, DType), desc.type  # supports_format_combination admits no other
    return TensorLayout.contiguous(dtype, tuple(desc.dims))
