"""Routed experts with weights in 4-bit or 8-bit tiles (see fusion/quantized_experts.py)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hybridge.runtime.engines.torch.fusion.quantized import taken_form
from hybridge.runtime.engines.torch.fusion.quantized_experts import TILED_EXPERTS
from hybridge.runtime.engines.torch.kernels import KernelRunner, alignment_of
from hybridge.runtime.engines.torch.node_context import Builder, NodeContext, Run
from hybridge.runtime.engines.torch.ops.optional_kernel import OptionalKernel
from hybridge.runtime.engines.torch.ops.rounded_experts import ExpertRounding, taken_rounding
from hybridge.runtime.engines.torch.ops.routing import EXACT, ExpertMatrices, Roundings, RoutedExperts, biases_of
from hybridge.runtime.engines.torch.weight_tiles import unpacked_tiles
from hybridge.trt_plugins.kernels.fused import tiled_experts
from hybridge.trt_plugins.kernels.fused.routed_experts import LARGEST_ROUTES
from hybridge.trt_plugins.kernels.fused.tiled_experts import Half
from hybridge.trt_plugins.kernels.fused.weight_tiles import UnpackTiles, WeightFormat
from hybridge.trt_plugins.specs.rounded_experts import ROUNDED_EXPERTS
from hybridge.trt_plugins.specs.routed_experts import ROUTED_EXPERTS, ExpertActivation

_ALIGNMENT = 16
# Inputs of a launch of both products without biases.
_UNBIASED = len(tiled_experts.INPUTS[Half.BOTH])


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

    def __init__(
        self,
        sizes: ExpertSizes,
        activation: ExpertActivation,
        kernels: KernelRunner,
        rounding: ExpertRounding | None = None,
    ) -> None:
        self._sizes, self._activation, self._kernels = sizes, activation, kernels
        self._rounding = rounding
        self._with_matrices = RoutedExperts(activation, kernels)
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
        *rest: torch.Tensor,
    ) -> torch.Tensor:
        """The weighted sum of the chosen experts' outputs; up, down: tiles of their weights.

        rest: scales of inputs, if these are rounded; then the experts' biases, if they have any.
        """
        scales, biases = (rest[:0], rest) if self._rounding is None else (rest[:2], rest[2:])
        tokens, chosen = x.reshape(-1, x.shape[-1]), ids.reshape(-1, ids.shape[-1])
        rounds = EXACT if self._rounding is None else self._rounding.of(*scales)
        if chosen.numel() <= LARGEST_ROUTES and tokens.stride(-1) == 1 and alignment_of(tokens) == _ALIGNMENT:
            given = [tokens, chosen.contiguous(), weights.reshape(chosen.shape).contiguous()]
            tiles = [up, up_factors, down, down_factors]
            y = (
                self._launched([*given, *tiles, *biases])
                if rounds is EXACT
                else self._rounded(given, tiles, biases, rounds)
            )
            if y is not None:
                return y.view(x.shape)
        sizes, parts = self._sizes, 2 if self._activation.gated else 1
        rows = sizes.experts * parts * sizes.intermediate
        up_matrix = unpacked_tiles(self._kernels, UnpackTiles(sizes.up, rows, sizes.hidden), up, up_factors)
        problem = UnpackTiles(sizes.down, sizes.experts * sizes.hidden, sizes.intermediate)
        down_matrix = unpacked_tiles(self._kernels, problem, down, down_factors)
        up, down = (matrix.view(sizes.experts, -1, matrix.shape[1]) for matrix in (up_matrix, down_matrix))
        return self._with_matrices(x, ids, weights, ExpertMatrices(up, down, biases_of(biases), rounds))

    def _launched(self, inputs: list[torch.Tensor]) -> torch.Tensor | None:
        """The result [n, hidden] of the kernels; None where they do not support the sizes."""
        x, (tokens, top_k) = inputs[0], inputs[1].shape
        problem = self._kernel.problem(
            lambda: self._problem(tokens, top_k, x.stride(0), Half.BOTH, len(inputs) > _UNBIASED)
        )
        return None if problem is None else self._run(problem, inputs, x.new_empty(x.shape))

    def _rounded(
        self,
        given: list[torch.Tensor],
        tiles: list[torch.Tensor],
        biases: tuple[torch.Tensor, ...],
        rounds: Roundings,
    ) -> torch.Tensor | None:
        """As ``_launched``, with rounded inputs of both products; ``given``: x, ids and weights.

        In the first product each route is a separate token, because its expert may have its own scale.
        """
        x, ids, weights = given
        (tokens, top_k), routes, sizes = ids.shape, ids.reshape(-1), self._sizes
        biased = bool(biases)
        up = self._kernel.problem(lambda: self._problem(len(routes), 1, sizes.hidden, Half.UP, biased))
        down = self._kernel.problem(lambda: self._problem(tokens, top_k, sizes.hidden, Half.DOWN, biased))
        if up is None or down is None:
            return None
        rows = rounds[0](x.repeat_interleave(top_k, 0, output_size=len(routes)), routes)
        inner = self._run(up, [rows, ids, *tiles[:2], *biases[:1]], x.new_empty(len(routes), sizes.intermediate))
        if inner is None:
            return None
        inputs = [rounds[1](inner, routes), ids, weights, *tiles[2:], *biases[1:]]
        return self._run(down, inputs, x.new_empty(x.shape))

    def _problem(self, tokens: int, top_k: int, x_stride: int, half: Half, biased: bool) -> tiled_experts.TiledExperts:
        sizes, form = self._sizes, self._activation
        return tiled_experts.TiledExperts(
            tokens,
            top_k,
            sizes.experts,
            sizes.hidden,
            sizes.intermediate,
            sizes.up,
            sizes.down,
            form.name,
            form.gated,
            x_stride,
            half,
            form.alpha,
            form.limit,
            form.offset,
            biased,
        )

    def _run(
        self, problem: tiled_experts.TiledExperts, inputs: list[torch.Tensor], output: torch.Tensor
    ) -> torch.Tensor | None:
        return output if self._kernel.launch(problem, inputs, [output]) else None


def _tiled_experts(context: NodeContext) -> Run:
    take = context.attributes.take
    forms = taken_form(context.attributes, "up_"), taken_form(context.attributes, "down_")
    sizes = ExpertSizes(take("experts"), take("hidden"), take("intermediate"), *forms)
    given = context.attributes.rest()
    spec = ROUNDED_EXPERTS if "rounding" in given else ROUTED_EXPERTS
    attributes = spec.complete_attributes(given)
    assert context.kernels is not None
    return TiledExperts(sizes, ExpertActivation.of(attributes), context.kernels, taken_rounding(attributes))


FUSED_ROWS: dict[str, Builder] = {TILED_EXPERTS: _tiled_experts}
