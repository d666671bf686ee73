"""Root-mean-square norms."""

from __future__ import annotations

import torch

from runtime.engines.torch.node_context import Builder, NodeContext, Run


def normed(x: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x / rms(x) over the last axis, computed in float32, in the type of x."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype)


def _rms_norm(context: NodeContext) -> Run:
    context.attributes.expect("axis", -1)
    context.attributes.expect("stash_type", 1)
    epsilon = context.attributes.take("epsilon", 1e-5)
    return lambda x, weight: normed(x, epsilon) * weight


ROWS: dict[str, Builder] = {"RMSNormalization": _rms_norm}
