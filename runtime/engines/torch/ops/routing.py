"""Operators of routers, and the experts that they choose."""

from __future__ import annotations

import torch

from runtime.engines.torch.node_context import Builder, NodeContext, Run
from trt_plugins.catalog import OPS
from trt_plugins.reference.routed_experts import ACTIVATIONS

# Up to this many routes (tokens x top_k) the weights of each are gathered: the host needs to know no choice then, so
# that decoding can be recorded. More routes run expert by expert.
GATHERED_ROUTES = 64


def _top_k(context: NodeContext) -> Run:
    axis = context.attributes.take("axis", -1)
    largest, ordered = bool(context.attributes.take("largest", 1)), bool(context.attributes.take("sorted", 1))
    (count,) = context.ints(1)
    return lambda x: tuple(x.topk(count, axis, largest, ordered))


def _softmax(context: NodeContext) -> Run:
    axis = context.attributes.take("axis", -1)
    return lambda x: x.softmax(axis)


def _reduce_sum(context: NodeContext) -> Run:
    keep = bool(context.attributes.take("keepdims", 1))
    context.attributes.take("noop_with_empty_axes", 0)
    axes = context.ints(1)
    return lambda x: x.sum(axes, keepdim=keep)


def _routed_experts(context: NodeContext) -> Run:
    attributes = OPS["routed_experts"].complete_attributes(context.attributes.rest())
    return RoutedExperts(str(attributes["activation"]), bool(attributes["gated"]))


class RoutedExperts:
    """The weighted sum of each token's experts; x [..., hidden], ids and weights [..., top_k] -> [..., hidden].

    Products are in the type of x, activations and the sum in float32.
    """

    def __init__(self, activation: str, gated: bool) -> None:
        self._activation, self._gated = ACTIVATIONS[activation], gated

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, up: torch.Tensor, down: torch.Tensor
    ) -> torch.Tensor:
        tokens, chosen = x.reshape(-1, x.shape[-1]), ids.reshape(-1, ids.shape[-1])
        few = x.is_cuda and chosen.numel() <= GATHERED_ROUTES
        results = self.gathered(tokens, chosen, up, down) if few else self.by_expert(tokens, chosen, up, down)
        mixed = (results.float() * weights.reshape(*chosen.shape, 1)).sum(1)
        return mixed.to(x.dtype).reshape(x.shape)

    def gathered(self, x: torch.Tensor, ids: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        """Result of every route [n, k, hidden], from copies of the chosen experts; nothing waits for the device."""
        routes = ids.reshape(-1)
        rows = x.repeat_interleave(ids.shape[1], 0, output_size=routes.shape[0])[:, :, None]
        inner = self._inner(torch.bmm(up.index_select(0, routes), rows).squeeze(-1))
        y = torch.bmm(down.index_select(0, routes), inner[:, :, None])
        return y.reshape(*ids.shape, x.shape[-1])

    def by_expert(self, x: torch.Tensor, ids: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        """Result of every route [n, k, hidden], from the experts where they lie."""
        results = x.new_empty((*ids.shape, x.shape[-1]))
        for expert in ids.unique().tolist():
            token, place = torch.where(ids == expert)
            inner = self._inner(torch.nn.functional.linear(x[token], up[expert]))
            results[token, place] = torch.nn.functional.linear(inner, down[expert])
        return results

    def _inner(self, up: torch.Tensor) -> torch.Tensor:
        wide = up.float()
        if not self._gated:
            return self._activation(wide).to(up.dtype)
        gate, rest = wide.chunk(2, dim=-1)
        return (self._activation(gate) * rest).to(up.dtype)


ROWS: dict[str, Builder] = {"ReduceSum": _reduce_sum, "Softmax": _softmax, "TopK": _top_k}
EDGE_ROWS: dict[str, Builder] = {"routed_experts": _routed_experts}
