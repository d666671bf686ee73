"""Whether a TensorRT lets a plugin's output share the memory of its input.

Both sides have to agree: TensorRT fails the build when a plugin names an aliased input and the feature is off.
"""

from __future__ import annotations

from typing import Any

_FEATURE, _INTERFACE = "ALIASED_PLUGIN_IO_10_03", "IPluginV3OneBuildV2"


def aliasing_feature(trt: Any) -> Any:
    """The preview feature to turn on, None where ``trt`` (before 10.3) has no aliasing."""
    has_interface = hasattr(trt, _INTERFACE) and hasattr(trt, "PreviewFeature")
    return getattr(trt.PreviewFeature, _FEATURE, None) if has_interface else None


def build_interface(trt: Any) -> Any:
    """The base class of a plugin's build capability: with aliasing where there is the feature."""
    return trt.IPluginV3OneBuild if aliasing_feature(trt) is None else getattr(trt, _INTERFACE)
