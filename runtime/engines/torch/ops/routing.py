"""Operators of routers, and the experts that they choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from hybridge.artifact.errors import UnsupportedError
from hybridge.runtime.engines.torch.kernels import KernelRunner, alignment_of, dtype_of
from hybridge.runtime.engines.torch.node_context import Builder, NodeContext, Run
from hybridge.runtime.engines.torch.ops.optional_kernel import OptionalKernel
from hybridge.trt_plugins.catalog import OPS
from hybridge.trt_plugins.kernels.fused import routed_experts, top_k_softmax
from hybridge.trt_plugins.kernels.fused.routed_experts import LARGEST_ROUTES, ExpertsDecode
from hybridge.trt_plugins.kernels.fused.top_k_softmax import TopKSoftmax
from hybridge.trt_plugins.reference.routed_experts import expert_activation
from hybridge.trt_plugins.specs.routed_experts import ExpertActivation

# Up to this many routes (tokens x top_k) that our kernels refuse, the weights of each are gathered: the host needs to
# know no choice then, so that decoding can be recorded. More routes are sorted by expert where torch has a product for
# groups of rows, else run expert by expert.
GATHERED_ROUTES = 64
_ALIGNMENT = 16
# GPUs on which torch's grouped product asks the host for nothing.
_GROUPED = ((9, 0), (10, 0))


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
    experts = RoutedExperts(ExpertActivation.of(attributes), context.kernels)

    def run(
        x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, *matrices_and_biases: torch.Tensor
    ) -> torch.Tensor:
        up, down, *biases = matrices_and_biases
        return experts(x, ids, weights, ExpertMatrices(up, down, biases_of(biases)))

    return run


def _top_k_softmax(context: NodeContext) -> Run:
    return Choice(context.attributes.take("top_k"), bool(context.attributes.take("normalized")), context.kernels)


class Choice:
    """The top_k experts of each token: logits [..., experts] float32 -> weights float32 and ids int32 [..., top_k].

    normalized: the weights of a token add up to 1; else they are shares among all experts.
    """

    def __init__(self, top_k: int, normalized: bool, kernels: KernelRunner | None) -> None:
        self._top_k, self._normalized, self._kernels = top_k, normalized, kernels
        self._refused: set[int] = set()

    def __call__(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        experts = logits.shape[-1]
        if self._kernels is not None and logits.is_contiguous() and experts not in self._refused:
            try:
                return self._launched(logits, self._kernels)
            except UnsupportedError:
                self._refused.add(experts)
        largest, ids = logits.topk(self._top_k, -1)
        weights = largest.softmax(-1) if self._normalized else logits.softmax(-1).gather(-1, ids)
        return weights, ids.to(torch.int32)

    def _launched(self, logits: torch.Tensor, kernels: KernelRunner) -> tuple[torch.Tensor, torch.Tensor]:
        experts, shape = logits.shape[-1], (*logits.shape[:-1], self._top_k)
        problem = TopKSoftmax(logits.numel() // experts, experts, self._top_k, self._normalized)
        weights = torch.empty(shape, dtype=torch.float32, device=logits.device)
        ids = torch.empty(shape, dtype=torch.int32, device=logits.device)
        kernels.launch(problem, lambda traits: top_k_softmax.plan(problem, traits), [logits], [weights, ids])
        return weights, ids


# One for each product: (values [routes, features], the expert of each route) -> the rounded values.
Roundings = tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...]


def _exact(values: torch.Tensor, _experts: torch.Tensor) -> torch.Tensor:
    return values


EXACT: Roundings = (_exact, _exact)


# Of both products: [experts, rows of up], [experts, hidden]; None for experts without.
Biases = tuple[torch.Tensor, torch.Tensor] | None


def biases_of(inputs: Sequence[torch.Tensor]) -> Biases:
    """The last ``inputs`` of a node of experts."""
    return (inputs[0], inputs[1]) if inputs else None


@dataclass(frozen=True)
class ExpertMatrices:
    """Of all experts: up [experts, rows, hidden], down [experts, hidden, intermediate], and their biases.

    rounds: how the inputs of both products are rounded.
    """

    up: torch.Tensor
    down: torch.Tensor
    biases: Biases = None
    rounds: Roundings = EXACT


class RoutedExperts:
    """The weighted sum of each token's experts; x [..., hidden], ids and weights [..., top_k] -> [..., hidden].

    Few routes run our kernels on a GPU. Else products are in the type of x, activations and the sum in float32.
    """

    def __init__(self, activation: ExpertActivation, kernels: KernelRunner | None = None) -> None:
        self._activation = activation
        self._kernel = None if kernels is None else OptionalKernel(kernels, routed_experts.plan)

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, matrices: ExpertMatrices
    ) -> torch.Tensor:
        tokens, chosen = x.reshape(-1, x.shape[-1]), ids.reshape(-1, ids.shape[-1])
        biases = matrices.biases
        if self._kernel is not None and matrices.rounds is EXACT and chosen.numel() <= LARGEST_ROUTES:
            routes = tokens, chosen, weights.reshape(chosen.shape)
            y = self._launched(*routes, matrices.up, matrices.down, *(biases or ()))
            if y is not None:
                return y.view(x.shape)
        results = self._form(tokens, chosen, matrices)(tokens, chosen, matrices).float()
        if biases is not None:
            results = results + biases[1][chosen.long()].float()
        mixed = (results * weights.reshape(*chosen.shape, 1)).sum(1)
        return mixed.to(x.dtype).reshape(x.shape)

    def _launched(self, *inputs: torch.Tensor) -> torch.Tensor | None:
        """The result [n, hidden] of the kernels for x, ids, weights, matrices and biases; None where they do
        not support the sizes."""
        assert self._kernel is not None
        x, ids, _, up, down, *biases = inputs
        apart = (x, up, down)
        contiguous = all(tensor.is_contiguous() for tensor in inputs[1:]) and x.stride(-1) == 1
        same = {tensor.dtype for tensor in (*apart, *biases)} == {x.dtype}
        if not contiguous or not same or any(alignment_of(tensor) < _ALIGNMENT for tensor in apart):
            return None
        tokens, top_k = ids.shape
        _, hidden, intermediate = down.shape
        form = self._activation
        problem = self._kernel.problem(
            lambda: ExpertsDecode(
                *(tokens, top_k, hidden, intermediate, dtype_of(x), form.name, form.gated, x.stride(0)),
                *(form.alpha, form.limit, form.offset, bool(biases)),
            )
        )
        if problem is None:
            return None
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        return y if self._kernel.launch(problem, inputs, [y]) else None

    def _form(
        self, x: torch.Tensor, ids: torch.Tensor, matrices: ExpertMatrices
    ) -> Callable[[torch.Tensor, torch.Tensor, ExpertMatrices], torch.Tensor]:
        """The fastest of the three forms below."""
        if not x.is_cuda:
            return self.by_expert
        if ids.numel() <= GATHERED_ROUTES:
            return self.gathered
        sizes = {*matrices.up.shape[1:], *matrices.down.shape[1:]}
        aligned = all(size * x.element_size() % _ALIGNMENT == 0 for size in sizes)
        grouped = hasattr(F, "grouped_mm") and x.dtype == torch.bfloat16 and aligned
        return self.grouped if grouped and torch.cuda.get_device_capability(x.device) in _GROUPED else self.by_expert

    def gathered(self, x: torch.Tensor, ids: torch.Tensor, matrices: ExpertMatrices) -> torch.Tensor:
        """Result of every route [n, k, hidden] without the last bias, from copies of the chosen experts.

        Nothing waits for the device.
        """
        routes = ids.reshape(-1)
        rows = matrices.rounds[0](x.repeat_interleave(ids.shape[1], 0, output_size=routes.shape[0]), routes)
        up = torch.bmm(matrices.up.index_select(0, routes), rows[:, :, None]).squeeze(-1)
        inner = self._inner(up, matrices, routes)
        y = torch.bmm(matrices.down.index_select(0, routes), inner[:, :, None])
        return y.reshape(*ids.shape, x.shape[-1])

    def grouped(self, x: torch.Tensor, ids: torch.Tensor, matrices: ExpertMatrices) -> torch.Tensor:
        """Result of every route [n, k, hidden], routes in the order of their experts; nothing waits for the device."""
        product = F.grouped_mm
        experts, order = ids.reshape(-1).sort(stable=True)
        all_experts = torch.arange(matrices.up.shape[0], dtype=experts.dtype, device=experts.device)
        ends = torch.searchsorted(experts, all_experts, right=True, out_int32=True)
        rows = matrices.rounds[0](x[order // ids.shape[1]], experts)
        inner = self._inner(product(rows, matrices.up.transpose(1, 2), offs=ends), matrices, experts)
        y = product(inner, matrices.down.transpose(1, 2), offs=ends)
        return torch.empty_like(y).index_copy_(0, order, y).reshape(*ids.shape, x.shape[-1])

    def by_expert(self, x: torch.Tensor, ids: torch.Tensor, matrices: ExpertMatrices) -> torch.Tensor:
        """Result of every route [n, k, hidden], from the experts where they are."""
        results = x.new_empty((*ids.shape, x.shape[-1]))
        for expert in ids.unique().tolist():
            token, place = torch.where(ids == expert)
            own = ids[token, place]
            up = F.linear(matrices.rounds[0](x[token], own), matrices.up[expert])
            results[token, place] = F.linear(self._inner(up, matrices, own), matrices.down[expert])
        return results

    def _inner(self, up: torch.Tensor, matrices: ExpertMatrices, experts: torch.Tensor) -> torch.Tensor:
        """up [routes, rows], experts [routes] -> the inputs of the second product [routes, intermediate], rounded."""
        wide = up.float()
        if matrices.biases is not None:
            wide = wide + matrices.biases[0][experts.long()].float()
        return matrices.rounds[1](expert_activation(wide, self._activation).to(up.dtype), experts)


ROWS: dict[str, Builder] = {"ReduceSum": _reduce_sum, "Softmax": _softmax, "TopK": _top_k}
FUSED_ROWS: dict[str, Builder] = {"TopKSoftmax": _top_k_softmax}
EDGE_ROWS: dict[str, Builder] = {"routed_experts": _routed_experts}
