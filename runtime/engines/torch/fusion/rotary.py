"""Rotary embedding in few kernels: its tables in the form of whole heads, made once per step for all layers.

RotaryTables (cos, sin [batch, seq, r / 2]) gives [cos, cos] and [-sin, sin] [batch, 1, seq, r]; Rotate (x, both) is
x * [cos, cos] + (x with its halves exchanged) * [-sin, sin] over the first r entries of each head.
"""

from __future__ import annotations

import onnx_ir as ir

from hybridge.runtime.engines.torch.graph import DOMAIN, fuse


def fuse_rotary(graph: ir.Graph) -> None:
    """Make a Rotate node of every rotary embedding of halves whose tables are computed by the graph."""
    tables: dict[tuple[ir.Value, ir.Value], ir.Node] = {}
    for node in list(graph):
        if (node.domain, node.op_type) != ("", "RotaryEmbedding") or len(node.inputs) != 3:
            continue
        x, cos, sin = node.inputs
        if node.attributes.get_int("interleaved") or cos is None or sin is None:
            continue
        if (cos, sin) not in tables:
            made = ir.node("RotaryTables", [cos, sin], domain=DOMAIN, num_outputs=2)
            for name, value in zip(("cos", "sin"), made.outputs, strict=True):
                value.name = f"engine.rotary_{name}_{len(tables)}"
            graph.insert_before(node, made)
            tables[cos, sin] = made
        fuse([node.outputs[0]], "Rotate", [x, *tables[cos, sin].outputs], {})
