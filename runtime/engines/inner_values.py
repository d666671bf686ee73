"""Inner values of a graph as outputs, for diagnosis: of sessions and programs that never generate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from hybridge.artifact.errors import EngineError


def value_sizes(graph: ir.Graph, names: Sequence[str]) -> dict[str, int]:
    """The size of the last axis of the inner values ``names``; EngineError for a name that the graph does not have."""
    produced = _produced(graph)
    return {name: int(_value(produced, name).shape[-1]) for name in names}  # type: ignore[index, arg-type]


def expose_values(graph: ir.Graph, names: Sequence[str]) -> None:
    """Make the inner values ``names`` outputs of the graph; EngineError for a name that the graph does not have."""
    outputs = {value.name for value in graph.outputs}
    produced = _produced(graph)
    graph.outputs.extend(_value(produced, name) for name in names if name not in outputs)


def _produced(graph: ir.Graph) -> dict[str | None, ir.Value]:
    return {value.name: value for node in graph for value in node.outputs}


def _value(produced: Mapping[str | None, ir.Value], name: str) -> ir.Value:
    if name not in produced:
        raise EngineError(f"expected a value {name} in the graph, found none: export the checkpoint again")
    return produced[name]
