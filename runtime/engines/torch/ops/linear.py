"""The Linear and TiledLinear nodes (see fusion): our kernel for a few rows on a GPU, else torch's matrix product."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.runtime.engines.torch.fusion.linear import LINEAR, TILED_LINEAR
from hybridge.runtime.engines.torch.fusion.quantized import taken_form
from hybridge.runtime.engines.torch.kernels import KernelRunner, alignment_of, dtype_of
from hybridge.runtime.engines.torch.node_context import Builder, NodeContext, Run
from hybridge.runtime.engines.torch.ops.norms import Norm
from hybridge.runtime.engines.torch.tensors import torch_from_dtype
from hybridge.trt_plugins.kernels.fused import linear_decode
from hybridge.trt_plugins.kernels.fused.linear_decode import LARGEST_NORM_ROWS, LARGEST_ROWS, LinearDecode
from hybridge.trt_plugins.kernels.fused.weight_tiles import UnpackTiles, unpack_plan

_ALIGNMENT = 16
_KERNEL_TYPES = (torch.float16, torch.bfloat16)
# Up to so many rows reading tiles for every 16 of them is less work than to make a matrix of them.
_TILED_ROWS = 4 * LARGEST_ROWS


class Linear:
    """activation(norm(x) · Wᵀ + bias) + residual for x [..., in], residual and result [..., out]."""

    def __init__(
        self,
        activation: str,
        epsilon: float | None,
        dtype: torch.dtype | None,
        kernels: KernelRunner | None,
        tiles: UnpackTiles | None = None,
    ) -> None:
        """``tiles``: how weights of 4 or 8 bits are given, with their factors; there are kernels then."""
        self._activation, self._epsilon, self._dtype, self._kernels = activation, epsilon, dtype, kernels
        self._tiles = tiles
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
        factors: tuple[torch.Tensor | None, ...] = (),
    ) -> torch.Tensor:
        """``result``: memory that the kernel may write to instead of new one. ``factors``: of tiled weights."""
        rows = x.numel() // x.shape[-1]
        known = self._tiles is not None or weight.dtype in _KERNEL_TYPES
        small = self._kernels is not None and rows <= LARGEST_ROWS and known
        if self._norm is not None and norm_weight is not None:
            # The kernel reads all its inputs as of one type.
            alike = x.dtype == norm_weight.dtype == torch.bfloat16 and alignment_of(norm_weight) == _ALIGNMENT
            if not (small and rows <= LARGEST_NORM_ROWS and alike):
                x, norm_weight = self._norm(x, norm_weight), None
        if small:
            y = self._launched(x, weight, up_weight, bias, residual, norm_weight, result, factors)
            if y is not None:
                return y
        if self._norm is not None and norm_weight is not None:
            x = self._norm(x, norm_weight)
        if self._tiles is not None and LARGEST_ROWS < rows <= _TILED_ROWS:
            flat = x.reshape(rows, -1).split(LARGEST_ROWS)
            added = [None] * len(flat) if residual is None else residual.reshape(rows, -1).split(LARGEST_ROWS)
            pairs = zip(flat, added, strict=True)
            found = [self(part, weight, up_weight, bias, more, factors=factors) for part, more in pairs]
            return torch.cat(found).view(*x.shape[:-1], -1)
        if self._tiles is not None:
            weight = self._unpacked(weight, factors[0])
            up_weight = None if up_weight is None else self._unpacked(up_weight, factors[1])
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
        factors: tuple[torch.Tensor | None, ...],
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
            dtype, shape = self._dtype or x.dtype, (x2.shape[0], problem.outputs)
            if result is not None and result.dtype == dtype:
                y = result.view(shape)
            else:
                y = torch.empty(shape, dtype=dtype, device=x.device)
            inputs = (x2, weight, up_weight, bias, added, norm_weight, *factors)
            found = problem
            self._kernels.launch(found, lambda traits: linear_decode.plan(found, traits), inputs, [y])
        except UnsupportedError:
            if problem is not None:
                self._refused.add(problem)
            return None
        return y.view(*x.shape[:-1], problem.outputs)

    def _unpacked(self, tiles: torch.Tensor, factors: torch.Tensor | None) -> torch.Tensor:
        """The matrix that the tiles hold."""
        assert self._kernels is not None and self._tiles is not None
        problem = self._tiles
        dtype = torch_from_dtype(problem.weight.dtype)
        matrix = torch.empty(problem.outputs, problem.inputs, dtype=dtype, device=tiles.device)
        self._kernels.launch(problem, lambda traits: unpack_plan(problem), (tiles, factors), [matrix])
        return matrix

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
            outputs=weight.shape[0] if self._tiles is None else self._tiles.outputs,
            dtype=dtype_of(weight) if self._tiles is None else self._tiles.weight.dtype,
            out_dtype=DType(str(out).removeprefix("torch.")),
            activation=self._activation,  # type: ignore[arg-type]
            bias=bias is not None,
            residual=residual is not None,
            norm_epsilon=None if norm_weight is None else self._epsilon,
            x_stride=x.stride(0),
            residual_stride=None if residual is None else residual.stride(0),
            tiles=None if self._tiles is None else self._tiles.weight,
        )


def _linear(context: NodeContext, tiles: UnpackTiles | None = None) -> Linear:
    dtype = context.attributes.take("dtype", None)
    return Linear(
        context.attributes.take("activation"),
        context.attributes.take("epsilon", None),
        None if dtype is None else torch_from_dtype(DType.from_onnx(dtype)),
        context.kernels,
        tiles,
    )


def _tiled_linear(context: NodeContext) -> Run:
    take = context.attributes.take
    linear = _linear(context, UnpackTiles(taken_form(context.attributes), take("outputs"), take("inputs")))

    def run(
        x: torch.Tensor,
        weight: torch.Tensor,
        up_weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        norm_weight: torch.Tensor | None,
        factors: torch.Tensor,
        up_factors: torch.Tensor | None,
        result: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return linear(x, weight, up_weight, bias, residual, norm_weight, result, (factors, up_factors))

    return run


ROWS: dict[str, Builder] = {LINEAR: _linear, TILED_LINEAR: _tiled_linear}
