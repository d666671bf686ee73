"""The stand-in has nothing that TensorRT lacks, and the plugins' callbacks take what TensorRT passes."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from typing import Any

import pytest

from hybridge.trt_plugins.plugins.interfaces import make_plugin_class
from tests.plugins import stand_in
from tests.plugins.conftest import installed_tensorrt

trt = importlib.import_module(installed_tensorrt())

CLASSES = [name for name, value in vars(stand_in).items() if inspect.isclass(value) and hasattr(trt, name)]


def test_every_name_is_tensorrts() -> None:
    own = {"Registry"}
    classes = {n for n, v in vars(stand_in).items() if inspect.isclass(v) and v.__module__ == stand_in.__name__}
    assert classes - own <= set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_members_exist(name: str) -> None:
    double, real = getattr(stand_in, name), getattr(trt, name)
    if issubclass(double, enum.Enum):
        assert set(double.__members__) <= set(real.__members__)
    elif name.endswith("Desc"):
        assert set(vars(double())) <= {attribute for attribute in dir(real()) if not attribute.startswith("_")}


def parameters(text: str, name: str) -> list[str]:
    """Argument names after self in a docstring of pybind11."""
    signature = re.match(rf"{name}\((.*?)\) ->", text)
    assert signature is not None, text
    return re.findall(r"(?:^|, )(\w+): ", signature[1])[1:]


def own_names(plugin: type) -> set[str]:
    """What the project's classes define, not TensorRT's."""
    own = [base for base in plugin.__mro__ if base.__module__.startswith("hybridge.trt_plugins.")]
    return {name for base in own for name in vars(base)}


@pytest.mark.parametrize(
    "base", [trt.IPluginV3, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime], ids=lambda base: base.__name__
)
def test_callbacks_take_what_tensorrt_passes(base: Any) -> None:
    plugin = make_plugin_class(trt)
    callbacks = [name for name in vars(base) if name in own_names(plugin) and not name.startswith("_")]
    assert callbacks
    for name in callbacks:
        own = list(inspect.signature(getattr(plugin, name)).parameters)[1:]
        assert len(own) == len(parameters(getattr(base, name).__doc__, name)), name


def test_every_callback_of_execution_is_there() -> None:
    plugin = make_plugin_class(trt)
    for base in (trt.IPluginV3OneBuildV2, trt.IPluginV3OneRuntime):
        methods = {name for name in dir(base) if callable(getattr(base, name)) and name.islower() and name[0] != "_"}
        assert methods and methods <= own_names(plugin)
