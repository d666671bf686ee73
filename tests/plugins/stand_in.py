"""The part of TensorRT's Python module that plugins touch, for machines without it. ``test_stand_in`` compares it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.plugins.data_types import trt_from_dtype

__version__ = "stand-in"

DataType = Enum("DataType", ["FLOAT", "HALF", "BF16", "INT64", "INT32", "INT8", "UINT8", "BOOL", "FP8"])
TensorFormat = Enum("TensorFormat", ["LINEAR", "CHW4", "HWC8"])
PluginFieldType = Enum("PluginFieldType", ["FLOAT32", "INT32", "CHAR"])
TensorRTPhase = Enum("TensorRTPhase", ["BUILD", "RUNTIME"])
PreviewFeature = Enum("PreviewFeature", ["ALIASED_PLUGIN_IO_10_03"])


class IPluginV3:
    """A plugin."""


class IPluginV3OneCore:
    """Names."""


class IPluginV3OneBuild:
    """Types, shapes, formats."""


class IPluginV3OneBuildV2:
    """The same with aliased outputs."""


class IPluginV3OneRuntime:
    """Execution."""


class IPluginCreatorV3One:
    """Creates plugins."""


class PluginField:
    """One field; ``size`` counts the elements of ``data``."""

    def __init__(self, name: str, data: Any, type: Any) -> None:
        self.name, self.data, self.type, self.size = name, data, type, len(data)


class PluginFieldCollection(list):
    """Fields."""


class DimsExprs(tuple):
    """Symbolic dims."""


@dataclass
class PluginTensorDesc:
    """One tensor at run time."""

    dims: tuple[int, ...] = ()
    type: Any = None
    format: Any = TensorFormat.LINEAR
    scale: float = 1.0


class DynamicPluginTensorDesc:
    """One tensor at build time."""

    def __init__(self) -> None:
        self.desc = PluginTensorDesc()
        self.min: tuple[int, ...] = ()
        self.opt: tuple[int, ...] = ()
        self.max: tuple[int, ...] = ()


class Registry:
    """Creators by name, version and namespace."""

    def __init__(self) -> None:
        self.creators: dict[tuple[str, str, str], Any] = {}

    def register_creator(self, creator: Any, plugin_namespace: str = "") -> bool:
        key = (creator.name, creator.plugin_version, plugin_namespace)
        return self.creators.setdefault(key, creator) is creator


def tensor_desc(trt: Any, dtype: DType, shape: tuple[int, ...]) -> Any:
    """A filled ``trt.PluginTensorDesc``, linear."""
    desc = trt.PluginTensorDesc()
    desc.dims, desc.type, desc.format = shape, trt_from_dtype(trt, dtype), trt.TensorFormat.LINEAR
    return desc


def dynamic_desc(trt: Any, dtype: DType, least: tuple[int, ...], most: tuple[int, ...]) -> Any:
    """A filled ``trt.DynamicPluginTensorDesc``, linear."""
    dynamic = trt.DynamicPluginTensorDesc()
    symbolic = tuple(small if small == large else -1 for small, large in zip(least, most, strict=True))
    dynamic.desc = tensor_desc(trt, dtype, symbolic)
    dynamic.min, dynamic.opt, dynamic.max = least, most, most
    return dynamic
