"""The plan of one operator call: which kernels run, with which parameters and which memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from hybridge.trt_plugins.kernels.architectures import HOPPER
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.source import KernelSource
from hybridge.trt_plugins.spec import AttributeValue, OpSpec


class Memory(str, Enum):
    """The buffer that a pointer field of a parameter struct points into."""

    INPUT = "input"
    OUTPUT = "output"
    WORKSPACE = "workspace"
    PACKED = "packed"
    COUNTERS = "counters"


@dataclass(frozen=True)
class PointerSource:
    """Where a pointer comes from at launch.

    index: of the input or output; for PACKED, of the tensors of ``PackedRows`` in their order.
    offset: bytes added to it.
    """

    memory: Memory
    index: int = 0
    offset: int = 0


@dataclass(frozen=True)
class PackedRows:
    """Packed addressing: rows are stored one after another in [tokens, ...] tensors, states in a pool of slots.

    query_start_loc [rows + 1] int32: row r has the tokens query_start_loc[r] to query_start_loc[r + 1] - 1.
    state_indices [rows] int32: the slot of row r in the state tensors, whose first axis counts slots; -1 marks a
    padding row, which is skipped. Absent from the call means that row r has slot r.
    max_row_tokens: an upper bound of a row's tokens, which sizes grids.
    draft_slots: of a speculative call, whose state_indices are [rows, draft_slots], and which has num_accepted_tokens
    [rows] int32 as its third tensor; 0 otherwise.
    """

    rows: int
    max_row_tokens: int
    has_state_indices: bool = True
    draft_slots: int = 0


@dataclass(frozen=True)
class OpCall:
    """One call of an operator, without its pointers.

    inputs, outputs: layouts in the order of the spec, None where an optional input is absent.
    attributes: complete.
    packed: None for dense rows, [batch, (time), ...] with context_lengths.
    variant: one of the operator's (``catalog.variants``), taken where it can run the call; "": the planner's choice.
    """

    spec: OpSpec
    inputs: tuple[TensorLayout | None, ...]
    outputs: tuple[TensorLayout, ...]
    attributes: Mapping[str, AttributeValue]
    packed: PackedRows | None = None
    variant: str = ""

    def input(self, name: str) -> TensorLayout:
        """The layout of a present input."""
        layout = self.inputs[self.spec.input_index(name)]
        assert layout is not None, name
        return layout


@dataclass(frozen=True)
class DeviceTraits:
    """Properties of a device on which the choice of a kernel variant may depend.

    capability: (major, minor). multiprocessors: their number. shared_bytes: most shared memory of one block.
    """

    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    l2_bytes: int

    @property
    def is_hopper_or_later(self) -> bool:
        """Whether there are programmatic dependent launch, bulk copies and clusters."""
        return self.capability >= HOPPER


@dataclass(frozen=True)
class KernelLaunch:
    """One kernel launch of a plan.

    params: the kernel's only argument, complete except for the fields of ``pointers``.
    shared_bytes: dynamic shared memory. cluster: blocks of a thread block cluster along x.
    overlap: launched by programmatic dependent launch: the kernel waits (griddepcontrol.wait) before it reads or
        writes memory that earlier kernels touch. Only for capability 9.0 and up.
    """

    source: KernelSource
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    params: ctypes.Structure
    pointers: Mapping[str, PointerSource]
    shared_bytes: int = 0
    cluster: int = 1
    overlap: bool = False


@dataclass(frozen=True)
class CallPlan:
    """The launches of one call, in order, and the bytes of scratch memory that they share (256-byte aligned).

    counter_bytes: memory that is zero before each call and that the launches leave zero; it belongs to the bound plan.
    """

    launches: tuple[KernelLaunch, ...]
    workspace_bytes: int = 0
    name: str = field(default="", compare=False)
    counter_bytes: int = 0
