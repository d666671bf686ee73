"""A planned call and the tensors that it works on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall, PackedRows
from hybridge.trt_plugins.kernels.catalog import plan as catalog_plan
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.spec import OpSpec

Tensors = Sequence[torch.Tensor | None]
Planner = Callable[[OpCall, DeviceTraits], CallPlan]
_ALIGNMENT = 256  # of a workspace
_OTHER_TRAITS: ContextVar[Mapping[str, Any]] = ContextVar("_OTHER_TRAITS", default=MappingProxyType({}))


@contextmanager
def planned_for(**traits: object) -> Iterator[None]:
    """Calls are planned for a GPU that has these ``traits`` and otherwise those of this one."""
    before = _OTHER_TRAITS.set(traits)
    try:
        yield
    finally:
        _OTHER_TRAITS.reset(before)


def planned_traits() -> DeviceTraits:
    """What calls are planned for: the current GPU, unless ``planned_for`` says otherwise."""
    return replace(KernelDevice.current().traits, **_OTHER_TRAITS.get())


class TensorCall:
    """Enqueues a plan's kernels on torch's current stream, each time with the same memory.

    It references the tensors, its workspace too: torch reuses the memory of a tensor without references, and an address
    keeps nothing alive.
    """

    def __init__(
        self,
        device: KernelDevice,
        plan: CallPlan,
        inputs: Tensors,
        outputs: Sequence[torch.Tensor],
        packed: Tensors = (None, None),
    ) -> None:
        """inputs, outputs: in the order of the plan's pointers, None where an optional input is absent. packed: those
        about packed rows."""
        workspace = torch.empty(plan.workspace_bytes + _ALIGNMENT, dtype=torch.uint8, device=outputs[0].device)
        self._tensors = (*inputs, *outputs, *packed, workspace)
        self._bound = device.bind(plan)
        self.launches = len(plan.launches)
        self._written = outputs
        self._inputs, self._outputs, self._packed = _addresses(inputs), _addresses(outputs), _addresses(packed)
        self._workspace = -(-workspace.data_ptr() // _ALIGNMENT) * _ALIGNMENT

    def __call__(self) -> Sequence[torch.Tensor]:
        """The outputs."""
        stream = torch.cuda.current_stream().cuda_stream
        self._bound.launch(stream, self._inputs, self._outputs, self._workspace, self._packed)
        return self._written


def operator_call(
    spec: OpSpec,
    inputs: Tensors,
    outputs: Sequence[torch.Tensor],
    attributes: Mapping[str, Any] | None = None,
    planner: Planner = catalog_plan,
    rows: PackedRows | None = None,
    packed: Tensors = (None, None),
) -> TensorCall:
    """The kernels that ``planner`` chooses for the operator ``spec`` on these tensors. rows, packed: of packed rows."""
    layouts = tuple(None if tensor is None else layout_of(tensor) for tensor in inputs)
    written = tuple(layout_of(tensor) for tensor in outputs)
    call = OpCall(spec, layouts, written, spec.complete_attributes(attributes or {}), rows)
    return TensorCall(KernelDevice.current(), planner(call, planned_traits()), inputs, outputs, packed)


def layout_of(tensor: torch.Tensor) -> TensorLayout:
    """Element type, shape and strides; e4m3 as the bytes that it is for the planners."""
    dtype = torch.uint8 if tensor.dtype is torch.float8_e4m3fn else tensor.dtype
    return TensorLayout(DType(str(dtype).removeprefix("torch.")), tuple(tensor.shape), tensor.stride())


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Standard normal numbers on the GPU."""
    return torch.randn(*shape, device="cuda").to(dtype)


def poisoned(*shape: int) -> torch.Tensor:
    """An output in bfloat16 full of NaN."""
    return torch.full(shape, float("nan"), dtype=torch.bfloat16, device="cuda")


def int32(rows: int, value: int) -> torch.Tensor:
    """``value`` for each row: lengths."""
    return torch.full((rows,), value, dtype=torch.int32, device="cuda")


def worst_error(found: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> float:
    """The largest relative norm of an error, in float64."""
    pairs = zip(found, expected, strict=True)
    return max(float((each.double() - right).norm() / right.norm()) for each, right in pairs)


def error_of_parts(parts: Iterable[Sequence[torch.Tensor]]) -> float:
    """Relative norm of the error of a tensor that is compared part by part: pairs of found and expected."""
    norms = [((found.double() - expected).norm() ** 2, expected.norm() ** 2) for found, expected in parts]
    wrong, whole = (torch.stack(each).sum() for each in zip(*norms, strict=True))
    return float((wrong / whole).sqrt())


def _addresses(tensors: Tensors) -> list[int]:
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
