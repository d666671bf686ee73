"""TensorRT plugins of the operators, derived from their specs. TensorRT itself is a parameter, never an import."""

from hybridge.trt_plugins.plugins.registration import PluginRegistration, register_plugins

__all__ = ["PluginRegistration", "register_plugins"]
