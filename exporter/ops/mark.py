"""A name for a value of the graph; the node disappears when the graph is finished."""

from __future__ import annotations

from typing import Any

import onnx
import torch
from onnxscript import values

from hybridge.exporter.ops.onnx_nodes import NAMESPACE

# The node in the traced graph.
MARK_DOMAIN, MARK_OP, MARK_ATTRIBUTE = "hybridge", "Mark", "name"


@torch.library.custom_op(f"{NAMESPACE}::mark", mutates_args=())
def mark(x: torch.Tensor, name: str, carried: torch.Tensor | None = None) -> torch.Tensor:
    """Give ``x`` the value name ``name`` in the exported graph; ``carried`` is what the next layer reads beside it."""
    return x.clone()


@mark.register_fake
def _fake(x: torch.Tensor, name: str, carried: torch.Tensor | None = None) -> torch.Tensor:
    return torch.empty_like(x)


def to_onnx(x: Any, name: str, carried: Any = None) -> Any:
    _register_schema()
    return getattr(values.Opset(MARK_DOMAIN, 1), MARK_OP)(x, *(() if carried is None else (carried,)), name=name)


def _register_schema() -> None:
    """The tracer looks up the schema of every node that it records."""
    if onnx.defs.has(MARK_OP, MARK_DOMAIN):
        return
    schema = onnx.defs.OpSchema(
        MARK_OP,
        MARK_DOMAIN,
        1,
        inputs=[
            onnx.defs.OpSchema.FormalParameter("x", "T"),
            onnx.defs.OpSchema.FormalParameter(
                "carried", "tensor(float)", param_option=onnx.defs.OpSchema.FormalParameterOption.Optional
            ),
        ],
        outputs=[onnx.defs.OpSchema.FormalParameter("y", "T")],
        type_constraints=[("T", ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"], "Any float.")],
        attributes=[onnx.defs.OpSchema.Attribute(MARK_ATTRIBUTE, onnx.defs.OpSchema.AttrType.STRING, "Value name.")],
    )
    onnx.defs.register_schema(schema)
