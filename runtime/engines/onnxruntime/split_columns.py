"""Operators of the library of CPU kernels that read some columns of a wider tensor, so that no Split copies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN
from hybridge.runtime.engines.onnxruntime.graph_edit import fixed_shape

# Inputs of an operator with the attribute that names their first column. Inputs of one group have equally many columns.
_COLUMNS: Mapping[str, Sequence[Sequence[tuple[int, str]]]] = MappingProxyType(
    {
        "CausalConv1d": [[(0, "x_at")]],
        "GatedNorm": [[(1, "gate_at")]],
        "UpdateSsmState": [[(0, "x_at")], [(2, "B_at"), (3, "C_at")], [(5, "dt_at")]],
        "UpdateSsmState8Bit": [[(0, "x_at")], [(2, "B_at"), (3, "C_at")], [(5, "dt_at")]],
    }
)


class _Part(NamedTuple):
    """Columns from ``first`` on of ``whole``."""

    whole: ir.Value
    first: int


def read_columns(model: ir.Model) -> None:
    """Let every operator that can read the parts of a Split of the last axis where they are."""
    for node in model.graph:
        for group in _COLUMNS.get(node.op_type, ()) if node.domain == CPU_DOMAIN else ():
            parts = [_part(node.inputs[index]) for index, _ in group]
            if len({None if part is None else part.whole for part in parts}) != 1:
                continue
            for part, (index, attribute) in zip(parts, group, strict=True):
                if part is not None:
                    node.replace_input_with(index, part.whole)
                    node.attributes.add(ir.AttrInt64(attribute, part.first))


def _part(value: ir.Value | None) -> _Part | None:
    split = None if value is None else value.producer()
    if value is None or split is None or (split.domain, split.op_type) != ("", "Split"):
        return None
    whole, shapes = split.inputs[0], [fixed_shape(output) for output in split.outputs]
    widths = [shape[-1] for shape in shapes if shape]
    rank = len(shapes[0] or ())
    if whole is None or len(widths) != len(shapes) or split.attributes.get_int("axis", 0) not in (-1, rank - 1):
        return None
    firsts = list(accumulate((width or 0 for width in widths), initial=0))
    return None if None in widths else _Part(whole, firsts[value.index() or 0])
