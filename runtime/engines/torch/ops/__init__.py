"""The operators that this engine runs: one row each."""

from __future__ import annotations

import onnx_ir as ir
import torch

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.torch.graph import DOMAIN
from hybridge.runtime.engines.torch.node_context import Builder
from hybridge.runtime.engines.torch.ops import (
    cached_attention,
    edge,
    elementwise,
    indexing,
    linear,
    norms,
    quantized,
    rotary,
    rounded_experts,
    routing,
    shapes,
    state_rings,
    tiled_experts,
)
from hybridge.trt_plugins import catalog

_STANDARD: dict[str, Builder] = {
    **elementwise.ROWS,
    **shapes.ROWS,
    **indexing.ROWS,
    "MatMul": lambda context: torch.matmul,
    **norms.ROWS,
    **quantized.ROWS,
    **rotary.ROWS,
    **routing.ROWS,
}
_FUSED: dict[str, Builder] = {
    **linear.ROWS,
    **norms.FUSED_ROWS,
    **quantized.FUSED_ROWS,
    **rotary.FUSED_ROWS,
    **elementwise.FUSED_ROWS,
    **cached_attention.ROWS,
    **routing.FUSED_ROWS,
    **tiled_experts.FUSED_ROWS,
    **state_rings.FUSED_ROWS,
}
OPERATORS: dict[str, dict[str, Builder]] = {
    "": _STANDARD,
    catalog.DOMAIN: {**edge.ROWS, **routing.EDGE_ROWS, **rounded_experts.EDGE_ROWS},
    DOMAIN: _FUSED,
}


def builder_of(node: ir.Node) -> Builder:
    """The builder of a step of ``node``; EngineError names an unknown operator."""
    builder = OPERATORS.get(node.domain, {}).get(node.op_type)
    if builder is None:
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        raise EngineError(f"the torch engine does not know the operator {name}: use `engine='onnxruntime'`")
    return builder
