"""The Linear and TiledLinear nodes (see fusion): our kernel for a few rows on a GPU, else torch's matrix product."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.torch.fusion.linear import INPUTS, LINEAR, TILED_INPUTS, TILED_LINEAR
from hybridge.runtime.engines.torch.fusion.quantized import taken_form
from hybridge.runtime.engines.torch.fusion.row_order import ORDERED_ROWS
from hybridge.runtime.engines.torch.kernels import KernelRunner, alignment_of, dtype_of
from hybridge.runtime.engines.torch.node_context import Builder, NodeContext, Run
from hybridge.runtime.engines.torch.ops.norms import Norm
from hybridge.runtime.engines.torch.ops.optional_kernel import OptionalKernel
from hybridge.runtime.engines.torch.tensors import torch_from_dtype
from hybridge.runtime.engines.torch.weight_tiles import unpacked_tiles
from hybridge.trt_plugins.kernels.fused import activate, linear_decode
from hybridge.trt_plugins.kernels.fused.activate import Activate
from hybridge.trt_plugins.kernels.fused.linear_decode import LARGEST_NORM_ROWS, LARGEST_ROWS, LinearDecode
from hybridge.trt_plugins.kernels.fused.weight_tiles import UnpackTiles

_ALIGNMENT = 16
_KERNEL_TYPES = (torch.float16, torch.bfloat16)
# Up to so many rows reading tiles for every 16 of them is less work than to make a matrix of them.
_TILED_ROWS = 4 * LARGEST_ROWS


class Operands(NamedTuple):
    """The tensors of one product, in the order of the nodes' inputs; None for absent ones.

    x [..., in]; weight and up_weight [out, in], or tiles of them with their factors [out]; bias [out]; residual
    [..., out]; norm_weight [in].
    """

    x: torch.Tensor
    weight: torch.Tensor
    up_weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    residual: torch.Tensor | None = None
    norm_weight: torch.Tensor | None = None
    factors: torch.Tensor | None = None
    up_factors: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        return self.x.numel() // self.x.shape[-1]

    def flat(self) -> Operands:
        """The same with x and residual as matrices."""
        residual = None if self.residual is None else self.residual.reshape(-1, self.residual.shape[-1])
        return self._replace(x=self.x.reshape(-1, self.x.shape[-1]), residual=residual)


class Linear:
    """activation(norm(x) · Wᵀ + bias) + residual, [..., out]."""

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
        self._kernel = None if kernels is None else OptionalKernel(kernels, linear_decode.plan)
        self._activate = None if kernels is None else OptionalKernel(kernels, activate.plan)

    def __call__(self, given: Operands, result: torch.Tensor | None = None) -> torch.Tensor:
        """``result``: memory that the kernel may write to instead of allocating."""
        x, norm_weight, rows = given.x, given.norm_weight, given.rows
        known = self._tiles is not None or given.weight.dtype in _KERNEL_TYPES
        small = self._kernel is not None and rows <= LARGEST_ROWS and known
        if self._norm is not None and norm_weight is not None:
            # The kernel reads all its inputs as of one type.
            alike = x.dtype == norm_weight.dtype == torch.bfloat16 and alignment_of(norm_weight) == _ALIGNMENT
            if not (small and rows <= LARGEST_NORM_ROWS and alike):
                given = self._normalised(given)
        if small:
            y = self._launched(given, result)
            if y is not None:
                return y
        given = self._normalised(given)
        if self._tiles is not None and LARGEST_ROWS < rows <= _TILED_ROWS:
            return self._launched_in_parts(given)
        if self._tiles is not None:
            given = self._unpacked(given)
        return self._portable(given)

    def _normalised(self, given: Operands) -> Operands:
        if self._norm is None or given.norm_weight is None:
            return given
        return given._replace(x=self._norm(given.x, given.norm_weight), norm_weight=None)

    def _portable(self, given: Operands) -> torch.Tensor:
        x, weight, residual = given.x, given.weight, given.residual
        if residual is not None and given.bias is None and self._activation == "none":
            rows, added = x.reshape(-1, x.shape[-1]), residual.reshape(-1, residual.shape[-1])
            return torch.addmm(added, rows, weight.t()).view(residual.shape)
        y = F.linear(x, weight, given.bias)
        if self._activation != "none":
            y = self._activated(y, None if given.up_weight is None else F.linear(x, given.up_weight))
        if residual is not None:
            y = y.add_(residual)
        return y if self._dtype is None else y.to(self._dtype)

    def _activated(self, y: torch.Tensor, up: torch.Tensor | None) -> torch.Tensor:
        """relu(y)², or silu(y) * up, in the memory of y: a fresh product, as ``up`` is."""
        if self._activate is not None:
            kernel, activation = self._activate, self._activation
            problem = kernel.problem(lambda: Activate(y.numel(), dtype_of(y), activation))  # type: ignore[arg-type]
            if problem is not None and kernel.launch(problem, [up], [y]):
                return y
        return y.relu_().square_() if up is None else F.silu(y, inplace=True).mul_(up)

    def _launched_in_parts(self, given: Operands) -> torch.Tensor:
        """The result for more rows than one launch of the kernel takes."""
        flat = given.flat()
        parts = flat.x.split(LARGEST_ROWS)
        added = [None] * len(parts) if flat.residual is None else flat.residual.split(LARGEST_ROWS)
        found = [self(flat._replace(x=x, residual=more)) for x, more in zip(parts, added, strict=True)]
        return torch.cat(found).view(*given.x.shape[:-1], -1)

    def _launched(self, given: Operands, result: torch.Tensor | None) -> torch.Tensor | None:
        """The result of the kernel, None where it does not run these sizes."""
        assert self._kernel is not None
        flat = given.flat()
        x, weight, added = flat.x, flat.weight, flat.residual
        fits = weight.is_contiguous() and x.stride(-1) == 1 and (added is None or added.stride(-1) == 1)
        aligned = all(alignment_of(t) == _ALIGNMENT for t in (x, weight, flat.up_weight) if t is not None)
        problem = self._kernel.problem(lambda: self._problem(flat)) if fits and aligned else None
        if problem is None:
            return None
        dtype, shape = self._dtype or x.dtype, (x.shape[0], problem.outputs)
        if result is not None and result.dtype == dtype:
            y = result.view(shape)
        else:
            y = torch.empty(shape, dtype=dtype, device=x.device)
        inputs = [getattr(flat, name) for name in linear_decode.INPUTS]
        return y.view(*given.x.shape[:-1], problem.outputs) if self._kernel.launch(problem, inputs, [y]) else None

    def _unpacked(self, given: Operands) -> Operands:
        """The operands with tiles unpacked to matrices."""
        assert given.factors is not None
        weight = self._matrix(given.weight, given.factors)
        if given.up_weight is None or given.up_factors is None:
            return given._replace(weight=weight)
        return given._replace(weight=weight, up_weight=self._matrix(given.up_weight, given.up_factors))

    def _matrix(self, tiles: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        assert self._kernels is not None and self._tiles is not None
        return unpacked_tiles(self._kernels, self._tiles, tiles, factors)

    def _problem(self, given: Operands) -> LinearDecode:
        out, residual = self._dtype or given.x.dtype, given.residual
        return LinearDecode(
            rows=given.x.shape[0],
            inputs=given.x.shape[1],
            outputs=given.weight.shape[0] if self._tiles is None else self._tiles.outputs,
            dtype=dtype_of(given.weight) if self._tiles is None else self._tiles.weight.dtype,
            out_dtype=DType(str(out).removeprefix("torch.")),
            activation=self._activation,  # type: ignore[arg-type]
            bias=given.bias is not None,
            residual=residual is not None,
            norm_epsilon=None if given.norm_weight is None else self._epsilon,
            x_stride=given.x.stride(0),
            residual_stride=None if residual is None else residual.stride(0),
            tiles=None if self._tiles is None else self._tiles.weight,
        )


def _linear(context: NodeContext) -> Run:
    return _on_operands(_of_node(context), len(INPUTS))


def _tiled_linear(context: NodeContext) -> Run:
    take = context.attributes.take
    tiles = UnpackTiles(taken_form(context.attributes), take("outputs"), take("inputs"))
    return _on_operands(_of_node(context, tiles), len(TILED_INPUTS))


def _ordered_rows(context: NodeContext) -> Run:
    order = torch.tensor(context.attributes.take("order"))
    return lambda *weights: (weights[0] if len(weights) == 1 else torch.cat(weights)).index_select(0, order)


def _of_node(context: NodeContext, tiles: UnpackTiles | None = None) -> Linear:
    dtype = context.attributes.take("dtype", None)
    return Linear(
        context.attributes.take("activation"),
        context.attributes.take("epsilon", None),
        None if dtype is None else torch_from_dtype(DType.from_onnx(dtype)),
        context.kernels,
        tiles,
    )


def _on_operands(linear: Linear, count: int) -> Run:
    """``linear`` on a node's first ``count`` inputs; the node of the logits also has memory for its result."""
    return lambda *tensors: linear(Operands(*tensors[:count]), *tensors[count:])


ROWS: dict[str, Builder] = {LINEAR: _linear, TILED_LINEAR: _tiled_linear, ORDERED_ROWS: _ordered_rows}
