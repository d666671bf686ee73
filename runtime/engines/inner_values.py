"""Inner values of a graph as outputs, for diagnosis: of sessions and programs that never generate."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from hybridge.artifact.errors import EngineError


def expose_values(graph: ir.Graph, names: Sequence[str]) -> None:
    """Make the inner values ``names`` outputs of the graph; EngineError for a name that the graph does not have."""
    outputs = {value.name for value in graph.outputs}
    produced = {value.name: value for node in graph for value in node.outputs}
    for name in names:
        if name in outputs:
            continue
        value = produced.get(name)
        if value is None:
            raise EngineError(f"expected a value {name} in the graph, found none: export the checkpoint again")
        graph.outputs.append(value)
