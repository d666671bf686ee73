"""Picking each row's last valid token as one LastToken node, which knows the lengths beforehand."""

from __future__ import annotations

import onnx_ir as ir

from hybridge.artifact.names import CONTEXT_LENGTHS
from hybridge.runtime.engines.torch.fusion.meaning import is_last_token
from hybridge.runtime.engines.torch.graph import fuse, lengths_input

LAST_TOKEN = "LastToken"


def fuse_last_token(graph: ir.Graph) -> None:
    """Make a LastToken node of the GatherND by the lengths, if there is one."""
    for node in list(graph):
        if (node.domain, node.op_type) == ("", "GatherND") and is_last_token(graph, node.inputs[1]):
            lengths = next(value for value in graph.inputs if value.name == CONTEXT_LENGTHS)
            fuse([node.outputs[0]], LAST_TOKEN, [node.inputs[0], lengths, lengths_input(graph)], {})
