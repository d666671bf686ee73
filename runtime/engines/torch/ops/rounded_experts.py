"""Experts whose products round their inputs first, as a quantised checkpoint specifies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hybridge.runtime.engines.torch.node_context import Builder, NodeContext, Run
from hybridge.runtime.engines.torch.ops.routing import ExpertMatrices, Roundings, RoutedExperts, biases_of
from hybridge.trt_plugins.catalog import OPS
from hybridge.trt_plugins.reference.rounded_experts import rounded
from hybridge.trt_plugins.specs.routed_experts import ExpertActivation


@dataclass(frozen=True)
class ExpertRounding:
    """The type of the rounded inputs, and how many features share a scale (attributes of ``rounded_experts``)."""

    rounding: str
    group: int

    def of(self, up_scale: torch.Tensor, down_scale: torch.Tensor) -> Roundings:
        """The roundings for both products, in float32, with the scales [experts] of each route's expert."""

        def apply(scales: torch.Tensor, values: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
            own = scales[experts.long()].float().view(-1, *[1] * (2 if self.group > 0 else 1))
            return rounded(values.float(), own, self.rounding, self.group).to(values.dtype)

        return partial(apply, up_scale), partial(apply, down_scale)


def taken_rounding(attributes: Mapping[str, Any]) -> ExpertRounding | None:
    """The rounding that the complete ``attributes`` of a node specify; None for ``routed_experts``."""
    if "rounding" not in attributes:
        return None
    return ExpertRounding(str(attributes["rounding"]), int(attributes["group"]))


def _rounded_experts(context: NodeContext) -> Run:
    attributes = OPS["rounded_experts"].complete_attributes(context.attributes.rest())
    experts = RoutedExperts(ExpertActivation.of(attributes))
    rounding = taken_rounding(attributes)
    assert rounding is not None

    def run(
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        up: torch.Tensor,
        down: torch.Tensor,
        up_scale: torch.Tensor,
        down_scale: torch.Tensor,
        *biases: torch.Tensor,
    ) -> torch.Tensor:
        matrices = ExpertMatrices(up, down, biases_of(biases), rounding.of(up_scale, down_scale))
        return experts(x, ids, weights, matrices)

    return run


EDGE_ROWS: dict[str, Builder] = {"rounded_experts": _rounded_experts}
