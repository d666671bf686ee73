"""Registration of the plugins with a TensorRT module."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hybridge.artifact.errors import EngineError, HybridgeError
from hybridge.trt_plugins.kernels.catalog import plan, plugin_specs, variants
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.plugins.calls import Planner
from hybridge.trt_plugins.plugins.errors import PluginErrors
from hybridge.trt_plugins.plugins.fields import SERIALIZED_ONLY, field_kinds, make_fields, values_from_fields
from hybridge.trt_plugins.plugins.interfaces import make_plugin_class
from hybridge.trt_plugins.plugins.layer import layer_from_fields
from hybridge.trt_plugins.plugins.op_plugin import OpPlugin, PluginDevice
from hybridge.trt_plugins.spec import AttributeKind, AttributeValue, OpSpec

_EXAMPLES: dict[AttributeKind, AttributeValue] = {"int": 0, "float": 0.0, "string": ""}
_NEEDED = ("IPluginV3", "IPluginV3OneCore", "IPluginV3OneBuild", "IPluginV3OneRuntime", "IPluginCreatorV3One")


class PluginRegistration:
    """The creators of one TensorRT module, which its registry refers to without owning them.

    ``creators``: by operator and version. ``errors`` holds what the plugins of that module met: wrap every call that
    may reach one in ``errors.raised()``.
    """

    def __init__(self, trt: Any, planner: Planner = plan, device: Callable[[], PluginDevice] = KernelDevice.current):
        """Make the creators; EngineError where ``trt`` is too old for plugins in Python."""
        missing = [name for name in _NEEDED if not hasattr(trt, name)]
        if missing:
            raise EngineError(
                f"plugins need TensorRT 10 or newer, found {trt.__version__} without {missing[0]}: "
                "update TensorRT or build with `plugins='off'`"
            )
        self.errors = PluginErrors()
        plugin_class = make_plugin_class(trt)

        def make_plugin(core: OpPlugin) -> Any:
            return plugin_class(core, self.errors)

        def make_core(spec: OpSpec, name: str, fields: Any) -> OpPlugin:
            layer = layer_from_fields(spec, name, values_from_fields(spec, fields))
            return OpPlugin(layer, planner, device, variants(spec.name))

        self.creators = {
            (spec.name, spec.version): _make_creator(trt, spec, make_core, make_plugin, self.errors)
            for spec in plugin_specs()
        }

    def register(self, trt: Any) -> None:
        """Hand the creators to the registry of ``trt``; EngineError where another plugin has the name."""
        for (name, version), creator in self.creators.items():
            namespace = creator.plugin_namespace
            if not trt.get_plugin_registry().register_creator(creator, namespace):
                raise EngineError(
                    f"expected to register the plugin {name} {version} of the namespace {namespace}, found one there: "
                    "do not load another library that registers it"
                )


_lock = threading.Lock()
# TensorRT has one plugin registry per module and process, so there is one registration of each.
_registrations: dict[str, PluginRegistration] = {}


def register_plugins(trt: Any) -> PluginRegistration:
    """Register the plugins of every operator with the module ``trt``, once; safe to call again.

    Engines that hold plugins can be deserialized afterwards. EngineError when the module has no such plugins.
    """
    with _lock:
        if trt.__name__ not in _registrations:
            registration = PluginRegistration(trt)
            registration.register(trt)
            _registrations[trt.__name__] = registration
        return _registrations[trt.__name__]


def _make_creator(
    trt: Any,
    spec: OpSpec,
    make_core: Callable[[OpSpec, str, Any], OpPlugin],
    make_plugin: Callable[[OpPlugin], Any],
    errors: PluginErrors,
) -> Any:
    class OpPluginCreator(trt.IPluginCreatorV3One):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IPluginCreatorV3One.__init__(self)
            self.name, self.plugin_namespace, self.plugin_version = spec.name, spec.domain, str(spec.version)
            kinds = {name: kind for name, kind in field_kinds(spec).items() if name not in SERIALIZED_ONLY}
            # The collection points into the fields.
            self._examples = make_fields(trt, spec, {name: _EXAMPLES[kind] for name, kind in kinds.items()})
            self.field_names = trt.PluginFieldCollection(self._examples)

        def create_plugin(self, name: str, field_collection: Any, phase: Any) -> Any:
            """A plugin from the attributes of an ONNX node (build phase) or from serialized fields (run time)."""
            try:
                return make_plugin(make_core(spec, name, field_collection))
            except Exception as error:
                text = str(error) if isinstance(error, HybridgeError) else f"{type(error).__name__}: {error}"
                described = EngineError(f"plugin {spec.name} of layer {name}, create_plugin: {text}")
                errors.record(described)
                raise described from error

    return OpPluginCreator()
