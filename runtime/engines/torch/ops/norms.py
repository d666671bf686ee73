"""Root-mean-square norms: our kernel on a GPU, else torch."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F

from hybridge.runtime.engines.torch.kernels import MOST_BOUND, KernelRunner, alignment_of, dtype_of
from hybridge.runtime.engines.torch.node_context import Builder, NodeContext, Run
from hybridge.runtime.engines.torch.ops.optional_kernel import OptionalKernel
from hybridge.trt_plugins.kernels.fused import rms_norm
from hybridge.trt_plugins.kernels.fused.rms_norm import RmsNorm

_ALIGNMENT = 16
# Layers have the same problem: it is made and checked once.
_problem = lru_cache(MOST_BOUND)(RmsNorm)


class Norm:
    """v / rms(v) * weight over groups of the last axis: x, gate and result [..., size], weight [size].

    group: columns of a group, None for all of them. The mean is taken in float32.
    v is x, or x * silu(gate); with ``gate_after`` the gate multiplies the result instead. The weight may be float32.
    """

    def __init__(
        self, epsilon: float, kernels: KernelRunner | None, group: int | None = None, gate_after: bool = False
    ) -> None:
        self._epsilon, self._group, self._gate_after = epsilon, group, gate_after
        self._kernel = None if kernels is None else OptionalKernel(kernels, rms_norm.plan)

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        if self._kernel is not None and weight.dtype in (x.dtype, torch.float32):
            y = self._launched(self._kernel, x, weight, gate)
            if y is not None:
                return y
        v = x.float() if gate is None or self._gate_after else x.float() * F.silu(gate.float())
        grouped = v if self._group is None else v.unflatten(-1, (-1, self._group))
        normed = grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + self._epsilon)
        if weight.dtype != x.dtype or self._gate_after:
            wide = normed.reshape(x.shape) * weight.float()
            return (wide if gate is None else wide * F.silu(gate.float())).to(x.dtype)
        return normed.reshape(x.shape).to(x.dtype) * weight

    def _launched(
        self, kernel: OptionalKernel[RmsNorm], x: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor | None
    ) -> torch.Tensor | None:
        """The result of the kernel, None where it does not run these sizes."""
        columns = x.shape[-1]
        x2, gate2 = x.reshape(-1, columns), None if gate is None else gate.reshape(-1, columns)
        tensors = [tensor for tensor in (x2, gate2, weight) if tensor is not None]
        if any(tensor.stride(-1) != 1 or alignment_of(tensor) != _ALIGNMENT for tensor in tensors):
            return None
        strides = (("x", x2.stride(0)),) if gate2 is None else (("x", x2.stride(0)), ("gate", gate2.stride(0)))
        gated, after = gate is not None and not self._gate_after, gate is not None and self._gate_after
        stored = None if weight.dtype == x.dtype else dtype_of(weight)
        sizes = x2.shape[0], columns, dtype_of(x), self._epsilon, self._group
        problem = kernel.problem(lambda: _problem(*sizes, False, gated, strides, after, stored))
        if problem is None:
            return None
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        return y if kernel.launch(problem, (x2, None, gate2, weight), (y, None)) else None


def _rms_norm(context: NodeContext) -> Run:
    context.attributes.expect("axis", -1)
    context.attributes.expect("stash_type", 1)
    return Norm(context.attributes.take("epsilon", 1e-5), context.kernels)


def _grouped_norm(context: NodeContext) -> Run:
    return Norm(context.attributes.take("epsilon"), context.kernels, context.attributes.take("group"))


def _wide_norm(context: NodeContext) -> Run:
    return Norm(context.attributes.take("epsilon"), context.kernels)


def _gated_norm(context: NodeContext) -> Run:
    return Norm(context.attributes.take("epsilon"), context.kernels, gate_after=True)


ROWS: dict[str, Builder] = {"RMSNormalization": _rms_norm}
FUSED_ROWS: dict[str, Builder] = {
    "GatedNorm": _gated_norm,
    "GroupedNorm": _grouped_norm,
    "WideNorm": _wide_norm,
}
