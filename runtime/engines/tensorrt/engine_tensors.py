"""Inputs and outputs of a deserialised engine, in the terms of engine.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.plugins.data_types import dtype_from_trt

DYNAMIC = -1


@dataclass(frozen=True)
class EngineTensor:
    """One input or output. ``shape`` has -1 for a dynamic axis.

    alias: the input whose memory an output shares, None for an output with its own memory.
    profiles: per optimization profile the (min, opt, max) shapes of an input; empty for an output.
    """

    name: str
    is_input: bool
    dtype: DType
    shape: tuple[int, ...]
    alias: str | None
    profiles: tuple[tuple[tuple[int, ...], ...], ...]


def engine_tensors(trt: Any, engine: Any) -> Mapping[str, EngineTensor]:
    """The tensors of ``engine`` (trt.ICudaEngine) by name; EngineError for one that the runtime cannot feed."""
    tensors = {}
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
            raise EngineError(f"expected {name} in device memory, found it on the host: build the engine again")
        is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        tensors[name] = EngineTensor(
            name=name,
            is_input=is_input,
            dtype=_dtype(name, engine.get_tensor_dtype(name)),
            shape=tuple(engine.get_tensor_shape(name)),
            alias=None if is_input else _alias(engine, name),
            profiles=_profiles(engine, name) if is_input else (),
        )
    return tensors


def _dtype(name: str, dtype: Any) -> DType:
    known = dtype_from_trt(dtype)
    if known is None:
        raise EngineError(f"expected {name} of a type that artifacts have, found {dtype.name}: build the engine again")
    return known


def _alias(engine: Any, name: str) -> str | None:
    # Versions without the method know no layer whose output shares its input's memory.
    ask = getattr(engine, "get_aliased_input_tensor", None)
    return (ask(name) or None) if ask is not None else None


def _profiles(engine: Any, name: str) -> tuple[tuple[tuple[int, ...], ...], ...]:
    return tuple(
        tuple(tuple(shape) for shape in engine.get_tensor_profile_shape(name, profile))
        for profile in range(engine.num_optimization_profiles)
    )
