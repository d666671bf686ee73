"""The class of all plugins: what TensorRT calls of one, with the base classes of the TensorRT in use.

``clone`` and ``get_capability_interface`` cannot fail: TensorRT crashes when they do, so they only copy and return.
"""

from __future__ import annotations

from typing import Any

from hybridge.trt_plugins.plugins.aliasing import build_interface
from hybridge.trt_plugins.plugins.callbacks import BuildCallbacks, RuntimeCallbacks
from hybridge.trt_plugins.plugins.errors import PluginErrors
from hybridge.trt_plugins.plugins.op_plugin import OpPlugin


def make_plugin_class(trt: Any) -> type:
    """The class of all plugins of this project in the TensorRT module ``trt``; made once per module."""
    module = trt
    bases = (trt.IPluginV3, trt.IPluginV3OneCore, build_interface(trt), trt.IPluginV3OneRuntime)

    class TensorRTPlugin(BuildCallbacks, RuntimeCallbacks, *bases):  # type: ignore[misc]
        """One layer's plugin, with all three of TensorRT's capabilities."""

        trt = module

        def __init__(self, core: OpPlugin, errors: PluginErrors) -> None:
            for base in bases:
                base.__init__(self)
            self.core, self.errors = core, errors
            spec = core.layer.spec
            self.plugin_name, self.plugin_namespace = spec.name, spec.domain
            self.plugin_version = str(spec.version)
            self.num_outputs = len(spec.outputs)
            self.timing_cache_id = self.timing_name()
            self.metadata_string = f"{spec.qualified_name} {dict(core.layer.attributes)}"
            # TensorRT keeps pointers to serialized fields.
            self._fields = []

        def get_capability_interface(self, type: Any) -> Any:
            return self

        def clone(self) -> Any:
            copy = TensorRTPlugin(self.core.clone(), self.errors)
            copy.timing_cache_id = self.timing_cache_id
            return copy

        def attach_to_context(self, resource_context: Any) -> Any:
            return self.clone()

    return TensorRTPlugin
