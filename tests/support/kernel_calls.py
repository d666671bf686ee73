"""Runs an operator's CUDA kernels on torch tensors, as an engine would: plan, bind, launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels import catalog
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall, PackedRows
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.layout import TensorLayout

H200 = DeviceTraits(capability=(9, 0), multiprocessors=132, shared_bytes=232448, l2_bytes=62914560)
"""Traits of an NVIDIA H200, for plans that are made without a GPU."""
ORIN = DeviceTraits(capability=(8, 7), multiprocessors=16, shared_bytes=166912, l2_bytes=4 << 20)
"""Traits of a Jetson Orin."""


def layout_of(tensor: torch.Tensor) -> TensorLayout:
    """Element type, shape, strides and alignment of a tensor."""
    dtype, address = DType(str(tensor.dtype).removeprefix("torch.")), tensor.data_ptr()
    return TensorLayout(dtype, tuple(tensor.shape), tensor.stride(), alignment=min(16, address & -address) or 16)


def op_call(
    name: str,
    inputs: Sequence[torch.Tensor | None],
    outputs: Sequence[torch.Tensor],
    attributes: Mapping[str, object],
    packed: PackedRows | None = None,
) -> OpCall:
    """The call of an operator on ``inputs`` and ``outputs``, in the order of its spec."""
    op = spec_of(name)
    layouts = tuple(None if tensor is None else layout_of(tensor) for tensor in inputs)
    return OpCall(op, layouts, tuple(layout_of(t) for t in outputs), op.complete_attributes(attributes), packed)


def run_plan(
    plan: CallPlan,
    inputs: Sequence[torch.Tensor | None],
    outputs: Sequence[torch.Tensor | None],
    packed: Sequence[torch.Tensor | None] = (None, None),
) -> None:
    """Launch ``plan`` on torch's current stream, with a workspace full of NaN, and wait for it."""
    workspace = torch.full((plan.workspace_bytes // 4 + 64,), float("nan"), device="cuda")
    address = (workspace.data_ptr() + 255) // 256 * 256
    KernelDevice.current().bind(plan).launch(
        torch.cuda.current_stream().cuda_stream, _addresses(inputs), _addresses(outputs), address, _addresses(packed)
    )
    torch.cuda.synchronize()


def run_op(
    name: str,
    inputs: Sequence[torch.Tensor | None],
    outputs: Sequence[torch.Tensor],
    attributes: Mapping[str, object],
    query_start_loc: torch.Tensor | None = None,
    state_indices: torch.Tensor | None = None,
    num_accepted: torch.Tensor | None = None,
) -> None:
    """Run the kernels of ``name`` into ``outputs``; packed where ``query_start_loc`` is given, speculative where
    ``num_accepted`` is."""
    packed = None
    if query_start_loc is not None:
        lengths = torch.diff(query_start_loc)
        draft_slots = state_indices.shape[1] if state_indices is not None and num_accepted is not None else 0
        packed = PackedRows(len(lengths), max(1, int(lengths.max())), state_indices is not None, draft_slots)
    plan = catalog.plan(op_call(name, inputs, outputs, attributes, packed), KernelDevice.current().traits)
    run_plan(plan, inputs, outputs, (query_start_loc, state_indices, num_accepted))


def _addresses(tensors: Sequence[torch.Tensor | None]) -> list[int]:
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]


def capability_from_architecture(name: str) -> tuple[int, int]:
    """The compute capability of sm_87 is (8, 7), of sm_120 (12, 0)."""
    digits = name.removeprefix("sm_").rstrip("a")
    return int(digits[:-1]), int(digits[-1])
