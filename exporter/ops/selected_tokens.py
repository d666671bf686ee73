"""The tokens whose logits a packed step returns."""

from __future__ import annotations

from typing import Any

import torch

from hybridge.exporter.ops.onnx_nodes import NAMESPACE, op


@torch.library.custom_op(f"{NAMESPACE}::selected_tokens", mutates_args=())
def selected_tokens(x: torch.Tensor, logits_indices: torch.Tensor) -> torch.Tensor:
    """The tokens ``logits_indices`` [m] int32 of ``x`` [tokens, d]: [m, d]."""
    return x[logits_indices.long()]


@selected_tokens.register_fake
def _fake(x: torch.Tensor, logits_indices: torch.Tensor) -> torch.Tensor:
    return x.new_empty((logits_indices.shape[0], x.shape[1]))


def to_onnx(x: Any, logits_indices: Any) -> Any:
    return op.Gather(x, logits_indices, axis=0)
