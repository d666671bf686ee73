"""The order in which layers are computed, with the layers of each loop together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.network.description import (
    ITERATOR,
    LOOP,
    LOOP_KINDS,
    LOOP_OUTPUT,
    RECURRENCE,
    TRIP_LIMIT,
    NetworkLayer,
    producers,
)


@dataclass(frozen=True)
class LoopStep:
    """One loop: its limits, carried values and iterators, the layers of one iteration, and its outputs."""

    limits: tuple[NetworkLayer, ...]
    recurrences: tuple[NetworkLayer, ...]
    iterators: tuple[NetworkLayer, ...]
    body: tuple[Step, ...]
    results: tuple[NetworkLayer, ...]

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(name for layer in self.results for name in layer.outputs)


Step = NetworkLayer | LoopStep


def scheduled(layers: Sequence[NetworkLayer]) -> tuple[Step, ...]:
    """All of ``layers``, each after those whose outputs it reads, otherwise in their order.

    EngineError if a layer depends on its own output.
    """
    return _scheduled(list(layers), _inner_layers(layers))


def _inner_layers(layers: Sequence[NetworkLayer]) -> dict[int, set[int]]:
    """By loop, the indices in ``layers`` of its boundary layers and of those that depend on its iteration."""
    readers: dict[str, list[int]] = defaultdict(list)
    inner: dict[int, set[int]] = defaultdict(set)
    for index, layer in enumerate(layers):
        for name in layer.inputs:
            if name is not None:
                readers[name].append(index)
        if layer.kind in LOOP_KINDS:
            inner[layer.attributes[LOOP]].add(index)
    for loop, own in inner.items():
        waiting = [index for index in own if layers[index].kind in (RECURRENCE, ITERATOR)]
        while waiting:
            layer = layers[waiting.pop()]
            if layer.kind == LOOP_OUTPUT and layer.attributes[LOOP] == loop:
                continue
            for name in layer.outputs:
                found = [index for index in readers[name] if index not in own]
                own.update(found)
                waiting += found
    return dict(inner)


def _scheduled(
    layers: Sequence[NetworkLayer], inner: dict[int, set[int]], among: Collection[int] | None = None
) -> tuple[Step, ...]:
    """The layers at ``among`` (all by default), with the loops ``inner`` as one step each."""
    indices = range(len(layers)) if among is None else sorted(among)
    # A nested loop belongs to the outer loop's step.
    outer = {
        loop: own
        for loop, own in inner.items()
        if own <= set(indices) and not any(own < other for other in inner.values() if other <= set(indices))
    }
    unit_of = {index: ("loop", loop) for loop, own in outer.items() for index in own}
    units: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index in indices:
        units[unit_of.get(index, ("layer", index))].append(index)
    ordered = _topological(layers, units)
    return tuple(
        _loop_step(layers, inner, loop, units["loop", loop]) if kind == "loop" else layers[loop]
        for kind, loop in ordered
    )


def _topological(layers: Sequence[NetworkLayer], units: dict[tuple[str, int], list[int]]) -> list[tuple[str, int]]:
    made_by = producers(layers)
    unit_of = {index: unit for unit, own in units.items() for index in own}
    waits: dict[tuple[str, int], set[tuple[str, int]]] = {}
    for unit, own in units.items():
        needed = (made_by.get(name) for index in own for name in layers[index].inputs if name is not None)
        waits[unit] = {unit_of[index] for index in needed if index is not None and index in unit_of} - {unit}
    readers = defaultdict(list)
    for unit, needed_units in waits.items():
        for needed_unit in needed_units:
            readers[needed_unit].append(unit)
    rank = {unit: number for number, unit in enumerate(units)}
    ready, ordered = [unit for unit in reversed(units) if not waits[unit]], []
    while ready:
        unit = ready.pop()
        ordered.append(unit)
        freed = []
        for reader in readers[unit]:
            waits[reader].discard(unit)
            if not waits[reader]:
                freed.append(reader)
        ready += sorted(freed, key=lambda u: -rank[u])
    if len(ordered) != len(units):
        stuck = next(own for unit, own in units.items() if waits[unit])
        raise EngineError(f"{layers[stuck[0]].title}: expected layers in an order, found it to wait for its own output")
    return ordered


def _loop_step(layers: Sequence[NetworkLayer], inner: dict[int, set[int]], loop: int, own: Iterable[int]) -> LoopStep:
    def of_kind(kind: str) -> tuple[NetworkLayer, ...]:
        return tuple(layers[i] for i in sorted(own) if layers[i].kind == kind and layers[i].attributes[LOOP] == loop)

    boundary = {i for i in own if layers[i].kind in LOOP_KINDS and layers[i].attributes[LOOP] == loop}
    others = {other: indices for other, indices in inner.items() if other != loop}
    body = _scheduled(layers, others, set(own) - boundary)
    return LoopStep(of_kind(TRIP_LIMIT), of_kind(RECURRENCE), of_kind(ITERATOR), body, of_kind(LOOP_OUTPUT))
