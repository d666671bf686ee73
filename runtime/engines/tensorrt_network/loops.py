"""A loop of a network: values carried between iterations, inputs iterated over, and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.tensorrt_network.schedule import LoopStep, Step
from hybridge.trt_plugins.network.description import NetworkLayer

LAST_VALUE, REVERSE = "LAST_VALUE", "REVERSE"


def run_loop(loop: LoopStep, values: dict[str, Tensor], run_step: Callable[[Step, dict[str, Tensor]], None]) -> None:
    """Run all iterations of ``loop`` and add its outputs to ``values``; one iteration if only shapes are computed."""
    count = _count(loop, values)
    scope = dict(values)
    carried = {layer.outputs[0]: values[_input(layer, 0)] for layer in loop.recurrences}
    rows: dict[str, list[Tensor]] = {layer.outputs[0]: [] for layer in loop.results}
    shapes_only = any(value.is_meta for value in (*carried.values(), *(values[_input(i, 0)] for i in loop.iterators)))
    for iteration in range(min(count, 1) if shapes_only else count):
        scope |= carried
        for layer in loop.iterators:
            place = count - 1 - iteration if layer.attributes["reverse"] else iteration
            scope[layer.outputs[0]] = values[_input(layer, 0)].select(layer.attributes["axis"], place)
        for step in loop.body:
            run_step(step, scope)
        carried = {layer.outputs[0]: scope[_input(layer, 1)] for layer in loop.recurrences}
        for layer in loop.results:
            if not is_last(layer):
                rows[layer.outputs[0]].append(scope[_input(layer, 0)])
    scope |= carried
    for layer in loop.results:
        name = layer.outputs[0]
        found = rows[name] * count if shapes_only else rows[name]
        values[name] = _last_value(layer, scope) if is_last(layer) else _joined(layer, found, values)


def _count(loop: LoopStep, values: Mapping[str, Tensor]) -> int:
    if len(loop.limits) != 1 or loop.limits[0].attributes["kind"] != "COUNT":
        kinds = [layer.attributes["kind"] for layer in loop.limits]
        where = loop.limits[0].title if loop.limits else "a loop"
        raise EngineError(f"{where}: expected one limit of kind COUNT, which alone is computed here, found {kinds}")
    count = values[_input(loop.limits[0], 0)]
    if count.is_meta:
        raise EngineError(f"{loop.limits[0].title}: expected a number of iterations that depends on shapes alone")
    return max(int(count), 0)


def is_last(layer: NetworkLayer) -> bool:
    """Whether the output ``layer`` of a loop is the value of the last iteration instead of all values joined."""
    return bool(layer.attributes["kind"] == LAST_VALUE)


def _last_value(layer: NetworkLayer, scope: Mapping[str, Tensor]) -> Tensor:
    name = _input(layer, 0)
    if name not in scope:
        raise EngineError(f"{layer.title}: expected at least one iteration, found none")
    return scope[name]


def _joined(layer: NetworkLayer, rows: list[Tensor], outside: Mapping[str, Tensor]) -> Tensor:
    length = int(outside[_input(layer, 1)])
    if length != len(rows) or not rows:
        raise EngineError(f"{layer.title}: expected {length} iterations to join, at least 1, found {len(rows)}")
    return torch.stack(rows[::-1] if layer.attributes["kind"] == REVERSE else rows, layer.attributes["axis"])


def _input(layer: NetworkLayer, index: int) -> str:
    name = layer.inputs[index] if index < len(layer.inputs) else None
    if name is None:
        raise EngineError(f"{layer.title}: expected an input {index}, found none")
    return name
