"""A name for a value of the graph; the node disappears when the graph is finished."""

from __future__ import annotations

from typing import Any

import torch

from hybridge.exporter.ops.onnx_nodes import NAMESPACE
from hybridge.exporter.ops.recorder import record

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
    return record(MARK_DOMAIN, MARK_OP, 1, (x,) if carried is None else (x, carried), 1, **{MARK_ATTRIBUTE: name})
