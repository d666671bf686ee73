"""One prefill call of ``update_ssm_state`` with its sizes, as the chunked kernels take it."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import Memory, OpCall, PointerSource
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.ops.decode_tile import access_bytes
from hybridge.trt_plugins.kernels.ops.rows import row_and_token_stride
from hybridge.trt_plugins.kernels.ops.state_space import state_space_pointers
from hybridge.trt_plugins.kernels.structs import struct_type

CHUNK = 64
WHOLE, STATES, OUTPUTS = 0, 1, 2
"""Passes of the kernels (macro PASS): one segment; states at the ends of segments; outputs of segments."""
_LARGEST_GRID_YZ = 65535


@dataclass(frozen=True)
class Scan:
    """One call with its sizes."""

    call: OpCall
    rows: int
    time: int
    heads: int
    head_dim: int
    groups: int
    state_size: int
    gate: TensorLayout | None

    @classmethod
    def of(cls, call: OpCall, gate: TensorLayout | None) -> Scan:
        x, B, state = call.input("x"), call.input("B"), call.input("state")
        for name, layout, axes in (
            *((name, call.input(name), 2) for name in ("x", "B", "C")),
            ("y", call.outputs[0], 2),
            ("dt", call.input("dt"), 1),
            ("state", state, 3),
            ("state_out", call.outputs[1], 3),
        ):
            layout.need_dense_tail(name, axes)
        if gate is not None:
            gate.need_dense_tail("gate", 1)
        heads, head_dim, state_size = state.shape[1:]
        sizes = {"heads": heads, "groups": B.shape[-2], "head_dim": head_dim, "state_size": state_size}
        call.spec.check_kernel_dims(sizes)
        dense_time = x.shape[1] if len(x.shape) == 4 else 1
        rows = call.packed.rows if call.packed is not None else x.shape[0]
        if rows > _LARGEST_GRID_YZ:
            raise UnsupportedError(
                f"update_ssm_state: expected at most {_LARGEST_GRID_YZ} rows, found {rows}: split the call"
            )
        time = call.packed.max_row_tokens if call.packed is not None else dense_time
        return cls(call, rows, time, heads, head_dim, B.shape[-2], state_size, gate)

    def strides(self, layout: TensorLayout) -> tuple[int, int]:
        """Strides of a row and a token of x, B, C or y, whose last two axes belong to a token."""
        return row_and_token_stride(self.call, layout, 2)

    @property
    def aligned(self) -> bool:
        """Whether every row of x, B, C and y starts at a multiple of 16 bytes."""
        layouts = (*(self.call.input(name) for name in ("x", "B", "C")), self.call.outputs[0])
        return all(
            layout.alignment >= 16
            and math.gcd(16, *(stride * layout.dtype.itemsize for stride in self.strides(layout))) == 16
            for layout in layouts
        )

    @property
    def pairs_states(self) -> bool:
        """Whether the states of every slot start at a multiple of two elements."""
        return all(
            access_bytes(layout, axes=1) >= 2 * layout.dtype.itemsize
            for layout in (self.call.input("state"), self.call.outputs[1])
        )

    def gate_access(self, most: int) -> int:
        """Elements, at most ``most``, of one access to the gate; 0 without one."""
        if self.gate is None:
            return 0
        return math.gcd(access_bytes(self.gate, axes=len(self.gate.shape) - 1) // self.gate.dtype.itemsize, most)


@dataclass(frozen=True)
class ScanVariant:
    """The types and sizes that every chunked kernel is compiled for."""

    dtype: DType
    state: DType
    D: DType
    bias: DType
    head_dim: int
    state_size: int

    def defines(self) -> dict[str, object]:
        """Their macros."""
        return {
            "DATA_T": self.dtype,
            "STATE_T": self.state,
            "D_T": self.D,
            "BIAS_T": self.bias,
            "HEAD_DIM": self.head_dim,
            "STATE_SIZE": self.state_size,
        }


def passes_of(segments: int) -> tuple[int, ...]:
    """The launches, as passes, of rows that are cut into so many segments."""
    return (WHOLE,) if segments == 1 else (STATES, OUTPUTS)


def scan_pointers(scan: Scan, which: int) -> dict[str, PointerSource]:
    """What the pointers of PrefillParams point to in the pass ``which``."""
    pointers = state_space_pointers(scan.call)
    if which != WHOLE:
        pointers["scratch"] = PointerSource(Memory.WORKSPACE)
    return pointers


def kernel_params(scan: Scan, file: str, segments: int) -> ctypes.Structure:
    call, params = scan.call, struct_type(file, "PrefillParams")()
    params.rows.rows, params.rows.time = scan.rows, scan.time
    params.x_row, params.x_token = scan.strides(call.input("x"))
    params.B_row, params.B_token = scan.strides(call.input("B"))
    params.C_row, params.C_token = scan.strides(call.input("C"))
    params.y_row, params.y_token = scan.strides(call.outputs[0])
    params.dt_row, params.dt_token = row_and_token_stride(call, call.input("dt"), 1)
    if scan.gate is not None:
        params.gate_row, params.gate_token = row_and_token_stride(call, scan.gate, 1)
    params.state_slot, params.state_out_slot = call.input("state").strides[0], call.outputs[1].strides[0]
    params.heads, params.groups, params.segments = scan.heads, scan.groups, segments
    params.dt_softplus = call.attributes["dt_softplus"]
    params.dt_min, params.dt_max = call.attributes["time_step_min"], call.attributes["time_step_max"]
    return params


def blocks_of(size: int, of: int) -> int:
    return -(-size // of)


def round_up(value: int, multiple: int) -> int:
    return blocks_of(value, multiple) * multiple


def tile_pitch(columns: int, dtype: DType) -> int:
    """Elements from row to row of a tile: TileLayout::PITCH in common/mma.cuh."""
    unit = 16 // dtype.itemsize
    units = columns // unit
    return (units if units % 8 == 0 or units % 2 else units + 1) * unit
