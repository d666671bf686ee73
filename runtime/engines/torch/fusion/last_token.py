"""Picking each row's last valid token as one LastToken node, which knows the lengths beforehand."""

from __future__ import annotations

import onnx_ir as ir

from hybridge.artifact.names import CONTEXT_LENGTHS
from hybridge.runtime.engines.torch.graph import constant_ints, fuse, lengths_input, producer

LAST_TOKEN = "LastToken"


def fuse_last_token(graph: ir.Graph) -> None:
    """Make a LastToken node of the GatherND by the lengths, if there is one."""
    for node in list(graph):
        lengths = _lengths(node.inputs[1]) if (node.domain, node.op_type) == ("", "GatherND") else None
        if lengths is not None:
            fuse([node.outputs[0]], LAST_TOKEN, [node.inputs[0], lengths, lengths_input(graph)], {})


def _lengths(index: ir.Value | None) -> ir.Value | None:
    """The context lengths where ``index`` is Unsqueeze(Max(lengths - 1, 0)), else None."""
    column = producer(index, "Unsqueeze")
    last = None if column is None else producer(column.inputs[0], "Max")
    before = None if last is None else producer(last.inputs[0], "Sub")
    cast = None if before is None else producer(before.inputs[0], "Cast")
    if last is None or before is None or cast is None:
        return None
    numbers = (constant_ints(before.inputs[1]), constant_ints(last.inputs[1]))
    lengths = cast.inputs[0]
    return lengths if numbers == ((1,), (0,)) and lengths is not None and lengths.name == CONTEXT_LENGTHS else None
