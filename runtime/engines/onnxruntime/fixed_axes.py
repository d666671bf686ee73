"""Specialise symbolic axes, so that ONNX Runtime folds the shape arithmetic that depends on them."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir


def fix_axes(model: ir.Model, sizes: Mapping[str, int]) -> None:
    """Replace the axes named in ``sizes`` by numbers in every declared shape of the main graph."""
    values = [*model.graph.inputs]
    for node in model.graph.all_nodes():
        values += node.outputs
    for value in values:
        if value.shape is not None:
            value.shape = ir.Shape(
                [sizes.get(str(d.value), d) if isinstance(d, ir.SymbolicDim) else d for d in value.shape.dims]
            )
