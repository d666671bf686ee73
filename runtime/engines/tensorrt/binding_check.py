"""Agreement of config.json, engine.json and the engine on its bindings, for both layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybridge.artifact.bindings import Binding
from hybridge.artifact.dtypes import DType
from hybridge.artifact.engine_record import AdvanceRecord, EngineRecord
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.tensorrt.engine_tensors import DYNAMIC, EngineTensor
from hybridge.trt_plugins.plugins.data_types import network_dtype

AGAIN = "run hybridge build-engine again with --overwrite"


@dataclass(frozen=True)
class StateBinding:
    """One state: its graph input, the output that replaces it, and whether both are the same memory."""

    spec: Binding
    output: str
    aliased: bool


def recorded_binding(entry: Mapping[str, Any]) -> Binding:
    """A binding of engine.json; KeyError, TypeError or ValueError where it is incomplete."""
    return Binding(entry["name"], DType(entry["dtype"]), tuple(entry["shape"]), entry.get("replaced_by"))


def check_bindings(
    inputs: tuple[Binding, ...],
    outputs: tuple[Binding, ...],
    fixed: Mapping[str, int],
    record: EngineRecord | AdvanceRecord,
    tensors: Mapping[str, EngineTensor],
) -> None:
    """EngineError naming the first binding of which ``record`` or ``tensors``, those of the engine, say otherwise.

    fixed: the symbolic axes that have one size in the engine.
    """
    recorded = {entry["name"]: entry for entry in record.bindings}
    for found, where in ((recorded, "engine.json"), (tensors, "the engine")):
        check_names({b.name for b in (*inputs, *outputs)}, set(found), where)
    for is_input, bindings in ((True, inputs), (False, outputs)):
        for binding in bindings:
            _check_record(binding, is_input, fixed, recorded[binding.name])
            _check_tensor(binding, is_input, fixed, tensors[binding.name])


def check_names(expected: set[str], found: set[str], where: str) -> None:
    if expected != found:
        missing = sorted(expected - found)
        text = f"no {missing[0]}" if missing else f"also {sorted(found - expected)[0]}"
        raise EngineError(f"{where}: expected the inputs and outputs of a step, found {text}: {AGAIN}")


def _check_record(binding: Binding, is_input: bool, fixed: Mapping[str, int], entry: Mapping) -> None:
    shape = [fixed.get(str(size), size) for size in binding.shape]
    expected = ("input" if is_input else "output", network_dtype(binding.dtype).value, shape, binding.replaced_by)
    found = (entry.get("mode"), entry.get("dtype"), entry.get("shape"), entry.get("replaced_by"))
    if expected != found:
        raise EngineError(f"engine.json: {binding.name}: expected {_text(expected)}, found {_text(found)}: {AGAIN}")


def _check_tensor(binding: Binding, is_input: bool, fixed: Mapping[str, int], tensor: EngineTensor) -> None:
    shape = tuple(size if isinstance(size, int) else fixed.get(size, DYNAMIC) for size in binding.shape)
    found_shape = tensor.shape
    if not tensor.is_input and len(found_shape) == len(shape):
        # TensorRT infers the axes of outputs, and may know less about them or more.
        found_shape = tuple(e if DYNAMIC in (e, f) else f for e, f in zip(shape, found_shape, strict=True))
    expected = ("input" if is_input else "output", network_dtype(binding.dtype).value, shape)
    found = ("input" if tensor.is_input else "output", tensor.dtype.value, found_shape)
    if expected != found:
        raise EngineError(
            f"the engine's {binding.name}: expected {_text(expected)}, found {_text(found)}: it is not the engine that "
            f"engine.json describes: {AGAIN}"
        )


def checked_profiles(
    expected_names: tuple[str, ...], record: EngineRecord | AdvanceRecord, tensors: Mapping[str, EngineTensor]
) -> dict[str, int]:
    """The index of each optimization profile; EngineError where one is missing or the engine has other shapes."""
    indices = {profile.name: index for index, profile in enumerate(record.profiles)}
    if not {*expected_names} <= set(indices):
        names = " and ".join(expected_names)
        raise EngineError(f"engine.json: expected the profiles {names}, found {sorted(indices)}: {AGAIN}")
    for tensor in tensors.values():
        if not tensor.is_input:
            continue
        expected = tuple(
            tuple(tuple(shape) for shape in profile.shapes.get(tensor.name, ())) for profile in record.profiles
        )
        if tensor.profiles != expected:
            raise EngineError(
                f"the engine's {tensor.name}: expected the profiles {_text(expected)}, found "
                f"{_text(tensor.profiles)}: it is not the engine that engine.json describes: {AGAIN}"
            )
    return indices


def state_binding(spec: Binding, recorded: str | None, reported: str | None) -> StateBinding:
    """recorded, reported: the input that engine.json and the engine say the output shares its memory with.

    The engine knows of caches, engine.json also of plugins that update their state in place. Such a plugin works as
    well in two buffers, but TensorRT need not write the second one.
    """
    output = str(spec.replaced_by)
    for alias in (recorded, reported):
        if alias not in (None, spec.name):
            raise EngineError(f"expected {output} in the memory of {spec.name}, found it in that of {alias}: {AGAIN}")
    return StateBinding(spec, output, recorded is not None or reported is not None)


def _text(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_text(item) for item in value)}]"
    return str(value)
