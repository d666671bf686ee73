"""Operators that pick or place elements by index."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.torch.node_context import Builder, NodeContext, Run


def _gather(context: NodeContext) -> Run:
    axis = context.attributes.take("axis", 0)
    if axis == -1:  # the features of every token in another order
        return lambda data, indices: data.index_select(-1, indices)
    if axis != 0:
        raise EngineError(f"Gather: the torch engine runs axis 0 and -1, found {axis}: use `engine='onnxruntime'`")
    return lambda data, indices: F.embedding(indices, data)


def _gather_elements(context: NodeContext) -> Run:
    axis = context.attributes.take("axis", 0)
    return lambda data, indices: torch.gather(data, axis, indices)


def _gather_nd(context: NodeContext) -> Run:
    """One index a row: data [b, t, ...], indices [b, 1] -> [b, ...]."""
    context.attributes.expect("batch_dims", 1)
    return lambda data, indices: data[torch.arange(data.shape[0], device=data.device), indices[:, 0]]


ROWS: dict[str, Builder] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
}
