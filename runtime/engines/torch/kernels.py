"""Launches the CUDA kernels of ``hybridge.trt_plugins.kernels`` on torch tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import torch

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.launcher import BoundPlan
from hybridge.trt_plugins.kernels.layout import TensorLayout

# The widest access of the kernels, in bytes.
_ACCESS = 16
_UNPACKED = (0, 0)
# Calls that are kept, those that came last: a prompt of another length is another one, of 7 KB of host memory each.
MOST_BOUND = 4096
_DTYPES = {getattr(torch, dtype.value): dtype for dtype in DType if hasattr(torch, dtype.value)}


class KernelRunner:
    """The kernels of the GPU that is current in torch; a call like one of the last ones is not planned again.

    Calls on different streams may run at the same time: each stream has plans, and their counters, of its own.
    """

    def __init__(self) -> None:
        torch.cuda.synchronize()  # makes the context that the driver is then asked for
        self._device, self._index = KernelDevice.current(), torch.cuda.current_device()
        self._bound: OrderedDict[Hashable, BoundPlan] = OrderedDict()
        # CUDA graphs use the counters of the plans that they have recorded.
        self._recorded: dict[Hashable, BoundPlan] = {}

    @property
    def traits(self) -> DeviceTraits:
        return self._device.traits

    def prepare(self, key: Hashable, plan: Callable[[DeviceTraits], CallPlan]) -> BoundPlan:
        """Plan the call that ``key`` names and load its kernels, unless it is one of the last ones.

        UnsupportedError where ``plan`` refuses the call, EngineError where the driver refuses its kernels.
        """
        return self._prepared((stream_of(self._index), key), plan)

    def _prepared(self, key: Hashable, plan: Callable[[DeviceTraits], CallPlan]) -> BoundPlan:
        bound = self._bound.pop(key, None) or self._recorded.get(key) or self._device.bind(plan(self.traits))
        self._bound[key] = bound
        if len(self._bound) > MOST_BOUND:
            self._bound.popitem(last=False)
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
        stream = stream_of(self._index)
        bound = self._prepared((stream, key), plan)
        if bound.plan.counter_bytes and torch.cuda.is_current_stream_capturing():
            self._recorded[stream, key] = bound
        nbytes = bound.plan.workspace_bytes
        # torch aligns allocations to 512 bytes. The memory may be reused by later work of this stream alone.
        workspace = torch.empty(nbytes, dtype=torch.uint8, device="cuda") if nbytes else None
        bound.launch(
            stream,
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
    """The inputs of ``layout_of``, as keys of calls."""
    return None if tensor is None else (tensor.dtype, tensor.shape, tensor.stride(), alignment_of(tensor))


def stream_of(device: int) -> int:
    """torch's current stream; torch.cuda.current_stream makes an object of it and takes ten times as long."""
    stream: int = torch._C._cuda_getCurrentRawStream(device)
    return stream


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
