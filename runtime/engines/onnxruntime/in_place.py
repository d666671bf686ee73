"""States that may share one buffer as input and output."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

# Operators whose kernels read each element of the past before they overwrite it in the present.
# (operator, input index, output index)
ALIAS_SAFE = {
    ("GroupQueryAttention", 3, 1),
    ("GroupQueryAttention", 4, 2),
    ("CachedAttention", 3, 1),
    ("CachedAttention", 4, 2),
    ("PagedTokenAttention", 3, 1),
    ("LinearAttention", 3, 1),
    ("UpdateSsmState", 7, 1),
    ("GatedDeltaRule", 5, 1),
    ("UpdateSsmState8Bit", 7, 1),
    ("UpdateSsmState8Bit", 8, 2),
    ("CausalConv1d", 2, 1),
    ("CausalConvWithState", 3, 1),
    ("TensorScatter", 0, 0),
    ("ScatterND", 0, 0),
}


# Operators whose output may share the memory of their first input.
_VIEWS = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"}


def updates_in_place(past: ir.Value, present: ir.Value) -> bool:
    """True when no reader of ``past`` can see that ``present`` is written into its buffer.

    Every reader must run before the writer (be an ancestor of it) or be the writer, through an operator that is
    safe with aliased buffers.
    """
    writer = present.producer()
    if writer is None or past.is_graph_output():
        return False
    earlier = _ancestors(writer)
    views = [past]
    for view in views:
        for user, index in view.uses():
            if user is writer and (writer.op_type, index, present.index()) not in ALIAS_SAFE:
                return False
            if user is not writer and user not in earlier:
                return False
            if user.op_type in _VIEWS and index == 0:
                views.append(user.outputs[0])
    return True


def _ancestors(node: ir.Node) -> set[ir.Node]:
    found: set[ir.Node] = set()
    pending = list(_predecessors(node))
    while pending:
        current = pending.pop()
        if current not in found:
            found.add(current)
            pending += _predecessors(current)
    return found


def _predecessors(node: ir.Node) -> Iterable[ir.Node]:
    return [producer for value in node.inputs if value is not None and (producer := value.producer()) is not None]
