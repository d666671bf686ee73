"""Layers that overwrite an input's memory, and reads of the old value that are unordered to that write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.network.description import (
    KV_CACHE_UPDATE,
    PLUGIN,
    NetworkDescription,
    NetworkLayer,
    producers,
)
from hybridge.trt_plugins.plugins.layer import state_inputs


@dataclass(frozen=True)
class Hazard:
    """``reader`` reads ``tensor``, which ``writer`` overwrites, and the network does not order the two."""

    tensor: str
    writer: str
    reader: str

    def __str__(self) -> str:
        return f"{self.reader} reads {self.tensor}, whose memory {self.writer} overwrites, and nothing orders the two"


@dataclass(frozen=True)
class Aliases:
    """``shared``: maps outputs to inputs of the same memory. ``changed_by``: by layer, the tensors it overwrites."""

    shared: Mapping[str, str]
    changed_by: Mapping[str, tuple[str, ...]]

    @property
    def changing(self) -> frozenset[str]:
        """All tensors that some layer overwrites."""
        return frozenset(self.shared.values())

    def in_place(self, layer: NetworkLayer) -> dict[str, str]:
        """Maps the outputs of ``layer`` that share the memory of an input to that input."""
        return {name: self.shared[name] for name in layer.outputs if name in self.shared}


def find_aliases(description: NetworkDescription) -> Aliases:
    """The states that the network updates in place.

    KV_CACHE_UPDATE writes into its input cache. A plugin that declares in-place updates writes into a state that is an
    input of the network and that no other layer reads; TensorRT passes it a copy of any other state.
    """
    readers: dict[str, int] = {}
    for layer in description.layers:
        for name in layer.inputs:
            if name is not None:
                readers[name] = readers.get(name, 0) + 1
    shared: dict[str, str] = {}
    changed_by: dict[str, tuple[str, ...]] = {}
    for layer in description.layers:
        found = {o: i for o, i in _written(layer).items() if i in description.inputs}
        if layer.kind == PLUGIN:
            found = {o: i for o, i in found.items() if readers[i] == 1 and o in description.outputs}
        if found:
            shared |= found
            changed_by[layer.name] = tuple(found.values())
    return Aliases(shared, changed_by)


def _written(layer: NetworkLayer) -> dict[str, str]:
    """Maps outputs to the inputs that they overwrite."""
    if layer.kind == KV_CACHE_UPDATE and layer.inputs[0] is not None:
        return {layer.outputs[0]: layer.inputs[0]}
    if layer.kind == PLUGIN and layer.attributes["aliased"]:
        spec = spec_of(layer.attributes["operator"], layer.attributes["version"])
        pairs = ((layer.outputs[o], layer.inputs[i]) for o, i in state_inputs(spec).items())
        return {output: state for output, state in pairs if state is not None}
    return {}


def find_hazards(description: NetworkDescription) -> tuple[Hazard, ...]:
    """Reads of a tensor that another layer overwrites without depending on the reader."""
    made_by = producers(description.layers)
    layers, found = description.layers, []
    for writer in layers:
        overwritten = {state for state in _written(writer).values() if writer.kind == KV_CACHE_UPDATE}
        if not overwritten:
            continue
        before = _ancestors(description, made_by, writer)
        for index, reader in enumerate(layers):
            if reader is not writer and index not in before:
                found += [Hazard(n, writer.title, reader.title) for n in overwritten if n in reader.inputs]
        found += [Hazard(n, writer.title, "an output of the network") for n in overwritten & set(description.outputs)]
    return tuple(found)


def _ancestors(description: NetworkDescription, made_by: Mapping[str, int], layer: NetworkLayer) -> set[int]:
    """The indices of the layers that ``layer`` depends on."""
    found: set[int] = set()
    waiting = [name for name in layer.inputs if name is not None]
    while waiting:
        index = made_by.get(waiting.pop())
        if index is not None and index not in found:
            found.add(index)
            waiting += [name for name in description.layers[index].inputs if name is not None]
    return found
