"""Launches the CUDA kernels of ``trt_plugins.kernels`` on torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch

from artifact.dtypes import DType
from trt_plugins.kernels.call import CallPlan, DeviceTraits
from trt_plugins.kernels.device import KernelDevice
from trt_plugins.kernels.launcher import BoundPlan
from trt_plugins.kernels.layout import TensorLayout

# The widest access of the kernels, in bytes.
_ACCESS = 16
_UNPACKED = (0, 0)
_DTYPES = {getattr(torch, dtype.value): dtype for dtype in DType if hasattr(torch, dtype.value)}


class KernelRunner:
    """The kernels of the GPU that is current in torch; each distinct call is planned and loaded once."""

    def __init__(self) -> None:
        torch.cuda.synchronize()  # makes the context that the driver is then asked for
        self._device = KernelDevice.current()
        self._bound: dict[Hashable, BoundPlan] = {}

    @property
    def traits(self) -> DeviceTraits:
        return self._device.traits

    def prepare(self, key: Hashable, plan: Callable[[DeviceTraits], CallPlan]) -> BoundPlan:
        """Plan the call that ``key`` names and load its kernels, unless that was done before.

        UnsupportedError where ``plan`` refuses the call, EngineError where the driver refuses its kernels.
        """
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = self._device.bind(plan(self.traits))
        return bound

    def launch(
        self,
        key: Hashable,
        plan: Callable[[DeviceTraits], CallPlan],
        inputs: Sequence[torch.Tensor | None],
        outputs: Sequence[torch.Tensor | None],
        packed: Sequence[torch.Tensor] = (),
    ) -> None:
        """Enqueue the kernels of ``plan`` on torch's current stream. ``key`` names the call: equal keys, equal plans.

        packed: query_start_loc and state_indices of a call of packed rows. Errors as in ``prepare``.
        """
        bound = self.prepare(key, plan)
        nbytes = bound.plan.workspace_bytes
        # torch aligns allocations to 512 bytes. The memory may be reused by later work of this stream alone.
        workspace = torch.empty(nbytes, dtype=torch.uint8, device="cuda") if nbytes else None
        bound.launch(
            torch.cuda.current_stream().cuda_stream,
            [_address(tensor) for tensor in inputs],
            [_address(tensor) for tensor in outputs],
            _address(workspace),
            [_address(tensor) for tensor in packed] or _UNPACKED,
        )


def layout_of(tensor: torch.Tensor) -> TensorLayout:
    """Element type, shape, strides and alignment of a tensor."""
    return TensorLayout(dtype_of(tensor), tuple(tensor.shape), tuple(tensor.stride()), alignment=alignment_of(tensor))


def alignment_of(tensor: torch.Tensor) -> int:
    """The largest power of two, up to 16, that divides the tensor's address."""
    address = tensor.data_ptr()
    return min(_ACCESS, address & -address) or _ACCESS


def dtype_of(tensor: torch.Tensor) -> DType:
    """The element type."""
    return _DTYPES.get(tensor.dtype) or DType(str(tensor.dtype).removeprefix("torch."))


def signature_of(tensor: torch.Tensor | None) -> tuple | None:
    """What ``layout_of`` depends on, for the keys of calls."""
    return None if tensor is None else (tensor.dtype, tensor.shape, tensor.stride(), alignment_of(tensor))


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
