"""A planned call and the tensors that it works on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.call import CallPlan
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.layout import TensorLayout

_ALIGNMENT = 256  # of a workspace


class TensorCall:
    """Enqueues a plan's kernels on torch's current stream, each time with the same memory.

    It holds the tensors, its workspace too: torch gives the memory of a tensor that nobody holds to the next one, and
    an address keeps nothing alive.
    """

    def __init__(
        self,
        device: KernelDevice,
        plan: CallPlan,
        inputs: Sequence[torch.Tensor | None],
        outputs: Sequence[torch.Tensor | None],
        packed: Sequence[torch.Tensor | None] = (None, None),
    ) -> None:
        """inputs, outputs: in the order of the plan's pointers, None where an optional one is absent. packed: the
        tensors about packed rows."""
        where = next(tensor.device for tensor in outputs if tensor is not None)
        workspace = torch.empty(plan.workspace_bytes + _ALIGNMENT, dtype=torch.uint8, device=where)
        self._held = (*inputs, *outputs, *packed, workspace)
        self._bound = device.bind(plan)
        self._inputs, self._outputs, self._packed = _addresses(inputs), _addresses(outputs), _addresses(packed)
        self._workspace = -(-workspace.data_ptr() // _ALIGNMENT) * _ALIGNMENT

    def __call__(self) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        self._bound.launch(stream, self._inputs, self._outputs, self._workspace, self._packed)


def layout_of(tensor: torch.Tensor) -> TensorLayout:
    """Element type, shape and strides; e4m3 as the bytes that it is for the planners."""
    dtype = torch.uint8 if tensor.dtype is torch.float8_e4m3fn else tensor.dtype
    return TensorLayout(DType(str(dtype).removeprefix("torch.")), tuple(tensor.shape), tensor.stride())


def _addresses(tensors: Sequence[torch.Tensor | None]) -> list[int]:
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
