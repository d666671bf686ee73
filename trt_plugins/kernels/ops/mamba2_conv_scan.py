"""Kernels of ``mamba2_conv_scan``: one launch where few rows make latency the cost, else those of its parts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, OpCall, PointerSource
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.ops.decode_tile import ACCESS_BYTES, StateTile, access_bytes
from hybridge.trt_plugins.kernels.ops.draft_rows import is_speculative
from hybridge.trt_plugins.kernels.ops.mamba2_parts import plan_parts
from hybridge.trt_plugins.kernels.ops.rows import row_and_token_stride, row_pointers, token_count
from hybridge.trt_plugins.kernels.source import CUDA_TYPES, KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type
from hybridge.trt_plugins.specs.mamba2_conv_scan import group_count

FILE = "mamba2_conv_scan/cluster_step.cu"
_LARGEST_CLUSTER = 8
# These schedule clusters beyond the size that every GPU with clusters has.
_LARGE_CLUSTERS = {(9, 0): 16, (10, 0): 16}
_THREADS = 128
_PASSES = 2
# Larger calls are faster as separate kernels (docs/explanation/kernels/mamba2_conv_scan.md): clusters start later than
# blocks, and each of their blocks does more work in sequence.
_MOST_PARTS = 8  # of the head of a block
_MOST_BLOCKS = 2  # per multiprocessor
PARTS = "parts"
VARIANTS = (PARTS,)
"""One token per row as two launches where one would suffice."""


def plan(call: OpCall, device: DeviceTraits) -> CallPlan:
    """The launches that run ``call``; UnsupportedError for sizes or layouts outside of the kernels' limits.

    The channels of a token are contiguous in every tensor, and the states except for their first axis. Addresses of the
    states and of conv_weight are multiples of 16 bytes.
    """
    if is_speculative(call):
        raise UnsupportedError(f"{call.spec.name}: expected packed rows, found draft tokens: run its parts")
    sizes = _Sizes.of(call)
    joined = token_count(call) == 1 and call.variant != PARTS
    step = _ClusterStep.of(call, sizes, device) if joined else None
    if step is None:
        return plan_parts(call, sizes.groups, device)
    launch = step.launch()
    return CallPlan((launch,), name=launch.source.label)


def sources() -> Iterator[KernelSource]:
    """The usual sizes in every type, and other ones in bfloat16."""
    tile = StateTile(DType.BFLOAT16, DType.FLOAT32, 64, 128, ACCESS_BYTES, _PASSES, _THREADS)
    base = _StepVariant(tile, DType.FLOAT32, DType.FLOAT32, 4, 4, "silu", True)
    for dtype in CUDA_TYPES:
        for kind in {DType.FLOAT32, dtype}:
            typed = replace(base, tile=replace(tile, dtype=dtype, state=kind), D=kind, bias=kind)
            yield typed.source()
    for head_dim, state_size in ((80, 128), (64, 64), (8, 8), (72, 40)):
        sized = replace(tile, head_dim=head_dim, state_size=state_size).with_threads(_THREADS)
        yield replace(base, tile=sized, kernel=3, conv_access=1).source()


@dataclass(frozen=True)
class _Sizes:
    rows: int
    heads: int
    head_dim: int
    state_size: int
    groups: int
    channels: int
    kernel: int

    @classmethod
    def of(cls, call: OpCall) -> _Sizes:
        heads, head_dim, state_size = call.input("state").shape[1:]
        channels, kernel = call.input("conv_state").shape[1:]
        inner = heads * head_dim
        sizes = {"heads": heads, "head_dim": head_dim, "state_size": state_size, "kernel": kernel, "inner": inner}
        call.spec.check_kernel_dims(sizes)
        groups = group_count(channels, inner, state_size)
        if call.input("gate").shape[-1] != inner or groups == 0 or heads % groups:
            raise UnsupportedError(
                f"{call.spec.name}: expected a gate of {inner} channels and a conv_dim of {inner} + 2 * groups * "
                f"{state_size} where groups divides {heads}, found {call.input('gate').shape[-1]} and {channels}; "
                "check the split of the projection"
            )
        rows = call.packed.rows if call.packed is not None else call.input("conv_input").shape[0]
        return cls(rows, heads, head_dim, state_size, groups, channels, kernel)


@dataclass(frozen=True)
class _StepVariant:
    """The macros of cluster_step.cu."""

    tile: StateTile
    D: DType
    bias: DType
    kernel: int
    conv_access: int
    activation: str
    softplus: bool

    def source(self) -> KernelSource:
        defines = {
            **self.tile.defines(),
            "D_T": self.D,
            "BIAS_T": self.bias,
            "SOFTPLUS": self.softplus,
            "KERNEL": self.kernel,
            "CONV_ACCESS": self.conv_access,
            "SILU": self.activation == "silu",
        }
        return KernelSource.of(FILE, "mamba2_step", defines)


@dataclass(frozen=True)
class _ClusterStep:
    """One call with at most one token per row, in one launch."""

    call: OpCall
    sizes: _Sizes
    variant: _StepVariant
    cluster: int

    @classmethod
    def of(cls, call: OpCall, sizes: _Sizes, device: DeviceTraits) -> _ClusterStep | None:
        """None where the GPU has no clusters, or its parts run the call faster."""
        if not device.is_hopper_or_later:
            return None
        cluster = sizes.heads // sizes.groups
        largest = _LARGE_CLUSTERS.get(device.capability, _LARGEST_CLUSTER)
        state, state_out = call.input("state"), call.outputs[2]
        dtype, width = call.input("conv_input").dtype, access_bytes(state, state_out, axes=1)
        tile = StateTile(dtype, state.dtype, sizes.head_dim, sizes.state_size, width, 1, _THREADS)
        tile = tile.with_passes(_PASSES).with_threads(_THREADS)
        few = sizes.rows * sizes.groups * cluster <= _MOST_BLOCKS * device.multiprocessors
        if not few or cluster > largest or tile.parts > _MOST_PARTS:
            return None
        conv_bytes = access_bytes(call.input("conv_state"), call.outputs[1], axes=2)
        variant = _StepVariant(
            tile,
            call.input("D").dtype,
            call.input("dt_bias").dtype,
            sizes.kernel,
            math.gcd(conv_bytes // dtype.itemsize, sizes.kernel),
            str(call.attributes["activation"]),
            bool(call.attributes["dt_softplus"]),
        )
        return cls(call, sizes, variant, cluster)

    def launch(self) -> KernelLaunch:
        grid = (self.cluster, self.sizes.groups, self.sizes.rows)
        block = (self.variant.tile.threads, 1, 1)
        pointers = _pointers(self.call)
        return KernelLaunch(
            self.variant.source(), grid, block, self._params(), pointers, cluster=self.cluster, overlap=True
        )

    def _params(self) -> Any:
        call, sizes = self.call, self.sizes
        params = struct_type(FILE, "Mamba2Step")()
        ssm = params.ssm
        params.conv_row, params.conv_token = self._strides("conv_input", call.input("conv_input"))
        ssm.gate_row, ssm.gate_token = self._strides("gate", call.input("gate"))
        ssm.dt_row, ssm.dt_token = self._strides("dt", call.input("dt"))
        ssm.y_row, ssm.y_token = self._strides("y", call.outputs[0])
        ssm.y_head = sizes.head_dim
        states = (("conv_state", call.input("conv_state"), 2), ("conv_state_out", call.outputs[1], 2))
        for name, layout, axes in (*states, ("state", call.input("state"), 3), ("state_out", call.outputs[2], 3)):
            layout.need_dense_tail(name, axes)
        params.conv_state_slot, params.conv_state_out_slot = (
            call.input("conv_state").strides[0],
            call.outputs[1].strides[0],
        )
        ssm.state_slot, ssm.state_out_slot = call.input("state").strides[0], call.outputs[2].strides[0]
        ssm.rows.rows, ssm.rows.time = sizes.rows, 1
        ssm.heads_per_group, params.groups = sizes.heads // sizes.groups, sizes.groups
        # All of them or, where the state is not aligned to what a prefetch takes, none.
        ssm.prefetch_blocks = int(self.variant.tile.state_bytes == ACCESS_BYTES)
        ssm.dt_min, ssm.dt_max = call.attributes["time_step_min"], call.attributes["time_step_max"]
        return params

    def _strides(self, name: str, layout: TensorLayout) -> tuple[int, int]:
        layout.need_dense_tail(name, 1)
        return row_and_token_stride(self.call, layout, trailing=1)


def _pointers(call: OpCall) -> dict[str, PointerSource]:
    spec = call.spec
    fields = {"conv_input": "conv_input", "conv_weight": "conv_weight", "conv_state": "conv_state"}
    fields |= {f"ssm.{name}": name for name in ("A", "D", "dt", "dt_bias", "gate", "state")}
    if call.inputs[spec.input_index("conv_bias")] is not None:
        fields["conv_bias"] = "conv_bias"
    pointers = {field: PointerSource(Memory.INPUT, spec.input_index(name)) for field, name in fields.items()}
    outputs = ("ssm.y", "conv_state_out", "ssm.state_out")
    pointers |= {field: PointerSource(Memory.OUTPUT, index) for index, field in enumerate(outputs)}
    return pointers | row_pointers(call, "ssm.rows.")
