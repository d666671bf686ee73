"""Routed experts with weights in 4-bit or 8-bit tiles (see fusion/quantized_experts.py)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hybridge.runtime.engines.torch.fusion.quantized import taken_form
from hybridge.runtime.engines.torch.fusion.quantized_experts import TILED_EXPERTS
from hybridge.runtime.engines.torch.kernels import KernelRunner, alignment_of
from hybridge.runtime.engines.torch.node_context import Builder, NodeContext, Run
from hybridge.runtime.engines.torch.ops.optional_kernel import OptionalKernel
from hybridge.runtime.engines.torch.ops.routing import RoutedExperts
from hybridge.runtime.engines.torch.weight_tiles import unpacked_tiles
from hybridge.trt_plugins.kernels.fused import tiled_experts
from hybridge.trt_plugins.kernels.fused.routed_experts import LARGEST_ROUTES
from hybridge.trt_plugins.kernels.fused.weight_tiles import UnpackTiles, WeightFormat
from hybridge.trt_plugins.specs.routed_experts import ROUTED_EXPERTS

_ALIGNMENT = 16


@dataclass(frozen=True)
class ExpertSizes:
    """Sizes of a model's routed experts; up, down: formats of the projections' weights."""

    experts: int
    hidden: int
    intermediate: int
    up: WeightFormat
    down: WeightFormat


class TiledExperts:
    """As RoutedExperts; x [..., hidden], ids and weights [..., top_k] -> [..., hidden].

    With few routes, kernels read the tiles. With more, the weights of all experts are unpacked for the call.
    """

    def __init__(self, sizes: ExpertSizes, activation: str, gated: bool, kernels: KernelRunner) -> None:
        self._sizes, self._activation, self._gated, self._kernels = sizes, activation, gated, kernels
        self._with_matrices = RoutedExperts(activation, gated, kernels)
        self._kernel = OptionalKernel(kernels, tiled_experts.plan)

    def __call__(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        up: torch.Tensor,
        up_factors: torch.Tensor,
        down: torch.Tensor,
        down_factors: torch.Tensor,
    ) -> torch.Tensor:
        """The weighted sum of the chosen experts' outputs; up, down: tiles of their weights."""
        tokens, chosen = x.reshape(-1, x.shape[-1]), ids.reshape(-1, ids.shape[-1])
        if chosen.numel() <= LARGEST_ROUTES and tokens.stride(-1) == 1 and alignment_of(tokens) == _ALIGNMENT:
            given = [tokens, chosen.contiguous(), weights.reshape(chosen.shape).contiguous()]
            y = self._launched([*given, up, up_factors, down, down_factors])
            if y is not None:
                return y.view(x.shape)
        sizes, parts = self._sizes, 2 if self._gated else 1
        rows = sizes.experts * parts * sizes.intermediate
        up_matrix = unpacked_tiles(self._kernels, UnpackTiles(sizes.up, rows, sizes.hidden), up, up_factors)
        problem = UnpackTiles(sizes.down, sizes.experts * sizes.hidden, sizes.intermediate)
        down_matrix = unpacked_tiles(self._kernels, problem, down, down_factors)
        stacked = (matrix.view(sizes.experts, -1, matrix.shape[1]) for matrix in (up_matrix, down_matrix))
        return self._with_matrices(x, ids, weights, *stacked)

    def _launched(self, inputs: list[torch.Tensor]) -> torch.Tensor | None:
        """The result [n, hidden] of the kernels; None where they do not support the sizes."""
        x, (tokens, top_k), sizes = inputs[0], inputs[1].shape, self._sizes
        problem = self._kernel.problem(
            lambda: tiled_experts.TiledExperts(
                tokens,
                top_k,
                sizes.experts,
                sizes.hidden,
                sizes.intermediate,
                sizes.up,
                sizes.down,
                self._activation,
                self._gated,
                x.stride(0),
            )
        )
        if problem is None:
            return None
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        return y if self._kernel.launch(problem, inputs, [y]) else None


def _tiled_experts(context: NodeContext) -> Run:
    take = context.attributes.take
    forms = taken_form(context.attributes, "up_"), taken_form(context.attributes, "down_")
    sizes = ExpertSizes(take("experts"), take("hidden"), take("intermediate"), *forms)
    attributes = ROUTED_EXPERTS.complete_attributes(context.attributes.rest())
    assert context.kernels is not None
    return TiledExperts(sizes, str(attributes["activation"]), bool(attributes["gated"]), context.kernels)


FUSED_ROWS: dict[str, Builder] = {TILED_EXPERTS: _tiled_experts}
