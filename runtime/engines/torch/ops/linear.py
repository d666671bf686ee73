"""The Linear node (see fusion.linear): our kernel for a few rows on a GPU, else torch's matrix product."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.runtime.engines.torch.kernels import KernelRunner, alignment_of, dtype_of
from hybridge.runtime.engines.torch.node_context import Builder, NodeContext, Run
from hybridge.runtime.engines.torch.ops.norms import Norm
from hybridge.runtime.engines.torch.tensors import torch_from_dtype
from hybridge.trt_plugins.kernels.fused import linear_decode
from hybridge.trt_plugins.kernels.fused.linear_decode import LARGEST_NORM_ROWS, LARGEST_ROWS, LinearDecode

_ALIGNMENT = 16
_KERNEL_TYPES = (torch.float16, torch.bfloat16)


class Linear:
    """activation(norm(x) · Wᵀ + bias) + residual for x [..., in], residual and result [..., out]."""

    def __init__(
        self, activation: str, epsilon: float | None, dtype: torch.dtype | None, kernels: KernelRunner | None
    ) -> None:
        self._activation, self._epsilon, self._dtype, self._kernels = activation, epsilon, dtype, kernels
        self._norm = None if epsilon is None else Norm(epsilon, kernels)
        self._refused: set[LinearDecode] = set()

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        up_weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        norm_weight: torch.Tensor | None = None,
        result: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``result``: memory that the kernel may write to instead of new one."""
        rows = x.numel() // x.shape[-1]
        small = self._kernels is not None and rows <= LARGEST_ROWS and weight.dtype in _KERNEL_TYPES
        if self._norm is not None and norm_weight is not None:
            # The kernel reads all its inputs as of one type.
            alike = x.dtype == norm_weight.dtype == torch.bfloat16 and alignment_of(norm_weight) == _ALIGNMENT
            if not (small and rows <= LARGEST_NORM_ROWS and alike):
                x, norm_weight = self._norm(x, norm_weight), None
        if small:
            y = self._launched(x, weight, up_weight, bias, residual, norm_weight, result)
            if y is not None:
                return y
        if self._norm is not None and norm_weight is not None:
            x = self._norm(x, norm_weight)
        return self._portable(x, weight, up_weight, bias, residual)

    def _portable(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        up_weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
    ) -> torch.Tensor:
        if residual is not None and bias is None and self._activation == "none":
            flat = torch.addmm(residual.reshape(-1, residual.shape[-1]), x.reshape(-1, x.shape[-1]), weight.t())
            return flat.view(residual.shape)
        y = F.linear(x, weight, bias)
        if self._activation == "relu2":
            y = y.relu_().square_()
        elif up_weight is not None:
            y = F.silu(y, inplace=True).mul_(F.linear(x, up_weight))
        if residual is not None:
            y = y.add_(residual)
        return y if self._dtype is None else y.to(self._dtype)

    def _launched(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        up_weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        norm_weight: torch.Tensor | None,
        result: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """The result of the kernel, None where it does not run these sizes."""
        assert self._kernels is not None
        x2 = x.reshape(-1, x.shape[-1])
        added = None if residual is None else residual.reshape(-1, residual.shape[-1])
        fits = weight.is_contiguous() and x2.stride(-1) == 1 and (added is None or added.stride(-1) == 1)
        aligned = all(alignment_of(t) == _ALIGNMENT for t in (x2, weight, up_weight) if t is not None)
        problem = None
        try:
            problem = self._problem(x2, weight, bias, added, norm_weight) if fits and aligned else None
            if problem is None or problem in self._refused:
                return None
            dtype = self._dtype or x.dtype
            if result is not None and result.dtype == dtype:
                y = result.view(x2.shape[0], weight.shape[0])
            else:
                y = torch.empty(x2.shape[0], weight.shape[0], dtype=dtype, device=x.device)
            inputs = (x2, weight, up_weight, bias, added, norm_weight)
            found = problem
            self._kernels.launch(found, lambda traits: linear_decode.plan(found, traits), inputs, [y])
        except UnsupportedError:
            if problem is not None:
                self._refused.add(problem)
            return None
        return y.view(*x.shape[:-1], weight.shape[0])

    def _problem(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        norm_weight: torch.Tensor | None,
    ) -> LinearDecode:
        out = self._dtype or x.dtype
        return LinearDecode(
            rows=x.shape[0],
            inputs=x.shape[1],
            outputs=weight.shape[0],
            dtype=dtype_of(weight),
            out_dtype=DType(str(out).removeprefix("torch.")),
            activation=self._activation,  # type: ignore[arg-type]
            bias=bias is not None,
            residual=residual is not None,
            norm_epsilon=None if norm_weight is None else self._epsilon,
            x_stride=x.stride(0),
            residual_stride=None if residual is None else residual.stride(0),
        )


def _linear(context: NodeContext) -> Run:
    dtype = context.attributes.take("dtype", None)
    return Linear(
        context.attributes.take("activation"),
        context.attributes.take("epsilon", None),
        None if dtype is None else torch_from_dtype(DType.from_onnx(dtype)),
        context.kernels,
    )


ROWS: dict[str, Builder] = {"Linear": _linear}
