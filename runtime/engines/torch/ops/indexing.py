"""Operators that pick or place elements by index."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.torch.kernels import KernelRunner, alignment_of, dtype_of
from hybridge.runtime.engines.torch.node_context import Builder, NodeContext, Run
from hybridge.runtime.engines.torch.ops.optional_kernel import OptionalKernel
from hybridge.trt_plugins.kernels.fused import gather_rows
from hybridge.trt_plugins.kernels.fused.gather_rows import GatherRows

_ALIGNMENT = 16


def _gather(context: NodeContext) -> Run:
    axis = context.attributes.take("axis", 0)
    if axis == -1:  # the features of every token in another order
        return lambda data, indices: data.index_select(-1, indices)
    if axis != 0:
        raise EngineError(f"Gather: the torch engine runs axis 0 and -1, found {axis}: use `engine='onnxruntime'`")
    return _RowsByIndex(context.kernels)


class _RowsByIndex:
    """data[indices]; all of data where there are no indices."""

    def __init__(self, kernels: KernelRunner | None) -> None:
        self._kernel = None if kernels is None else OptionalKernel(kernels, gather_rows.plan)

    def __call__(self, data: torch.Tensor, indices: torch.Tensor | None) -> torch.Tensor:
        if indices is None:
            return data
        found = None if self._kernel is None else self._launched(self._kernel, data, indices)
        return F.embedding(indices, data) if found is None else found

    @staticmethod
    def _launched(kernel: OptionalKernel[GatherRows], data: torch.Tensor, indices: torch.Tensor) -> torch.Tensor | None:
        """The result of the kernel, None where it does not run these sizes."""
        if not (data.is_contiguous() and indices.is_contiguous() and alignment_of(data) == _ALIGNMENT):
            return None
        row_bytes = data[:1].nbytes
        problem = kernel.problem(lambda: GatherRows(indices.numel(), row_bytes, dtype_of(indices)))
        if problem is None:
            return None
        y = torch.empty((*indices.shape, *data.shape[1:]), dtype=data.dtype, device=data.device)
        return y if kernel.launch(problem, (data, indices), (y,)) else None


def _gather_elements(context: NodeContext) -> Run:
    axis = context.attributes.take("axis", 0)
    return lambda data, indices: torch.gather(data, axis, indices)


def _gather_nd(context: NodeContext) -> Run:
    """One index a row: data [b, t, ...], indices [b, 1] -> [b, ...]."""
    context.attributes.expect("batch_dims", 1)
    return lambda data, indices: data[torch.arange(data.shape[0], device=data.device), indices[:, 0]]


ROWS: dict[str, Builder] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
}
