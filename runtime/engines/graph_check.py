"""Checks a graph against config.json."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from hybridge.artifact.bindings import GraphBindings
from hybridge.artifact.errors import ArtifactError


def check_graph(path: Path, graph: ir.Graph, bindings: GraphBindings) -> None:
    """ArtifactError where ``graph``, read from ``path``, lacks one of ``bindings``; heads may have more."""
    for kind, declared, values in (
        ("inputs", bindings.inputs, graph.inputs),
        ("outputs", bindings.outputs, graph.outputs),
    ):
        if missing := {binding.name for binding in declared} - {str(value.name) for value in values}:
            raise ArtifactError(
                f"{path}: expected the {kind} that config.json declares, found no {min(missing)}: copy the whole "
                "artifact again, or export the checkpoint again"
            )
