"""``mamba2_conv_scan`` as kernels of its parts: for one token per row a convolution and a state update that gates y,
for more a convolution, a chunked scan and a gate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, OpCall, PointerSource
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.ops import causal_conv1d, update_ssm_state
from hybridge.trt_plugins.kernels.ops.decode_tile import access_bytes
from hybridge.trt_plugins.kernels.ops.rows import row_and_token_stride, row_pointers, token_count
from hybridge.trt_plugins.kernels.source import CUDA_TYPES, KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type

GATE_FILE = "mamba2_conv_scan/gate.cu"
_GATE_THREADS = 128
_LARGEST_GRID_YZ = 65535
_ALIGNMENT = 256


def plan_parts(call: OpCall, groups: int, device: DeviceTraits) -> CallPlan:
    """The convolution writes x, B and C to the workspace, where the state update reads them."""
    gated = token_count(call) == 1  # the one-token kernel of the state update gates y
    conv_input = call.input("conv_input")
    mixed = TensorLayout.contiguous(conv_input.dtype, conv_input.shape)
    mixed_bytes = -(-math.prod(mixed.shape) * mixed.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
    conv = causal_conv1d.plan(_conv_call(call, mixed), device)
    scan_call = _scan_call(call, mixed, groups)
    if gated:
        scan = CallPlan((update_ssm_state.decode_launch(scan_call, device, gate=call.input("gate")),))
    else:
        scan = update_ssm_state.plan(scan_call, device)
    launches = (*_conv_launches(call, conv, mixed_bytes), *_scan_launches(call, scan, groups, mixed_bytes, gated))
    if not gated:
        launches += (gate_launch(call, device),)
    workspace = mixed_bytes + max(conv.workspace_bytes, scan.workspace_bytes)
    return CallPlan(launches, workspace, " + ".join(launch.source.entry for launch in launches))


def _conv_launches(call: OpCall, conv: CallPlan, mixed_bytes: int) -> tuple[KernelLaunch, ...]:
    names = {"x": "conv_input", "weight": "conv_weight", "bias": "conv_bias"}
    inputs = _inputs(call, "causal_conv1d", names, {})
    outputs = (PointerSource(Memory.WORKSPACE), PointerSource(Memory.OUTPUT, 1))
    return tuple(_moved(launch, inputs, outputs, mixed_bytes) for launch in conv.launches)


def _scan_launches(
    call: OpCall, scan: CallPlan, groups: int, mixed_bytes: int, gated: bool
) -> tuple[KernelLaunch, ...]:
    state, item = call.input("state"), call.input("conv_input").dtype.itemsize
    inner, width = math.prod(state.shape[1:3]), groups * state.shape[3]
    offsets = {"x": 0, "B": inner, "C": inner + width}
    here = {name: PointerSource(Memory.WORKSPACE, 0, at * item) for name, at in offsets.items()}
    inputs = _inputs(call, "update_ssm_state", {}, here)
    outputs = (PointerSource(Memory.OUTPUT, 0), PointerSource(Memory.OUTPUT, 2))
    launches = tuple(_moved(launch, inputs, outputs, mixed_bytes) for launch in scan.launches)
    if not gated:
        return launches
    gate = {"gate": PointerSource(Memory.INPUT, call.spec.input_index("gate"))}
    return tuple(replace(launch, pointers={**launch.pointers, **gate}) for launch in launches)


def gate_sources() -> Iterator[KernelSource]:
    """The gate by itself, with wide and with single accesses."""
    for dtype in CUDA_TYPES:
        for access in (16 // dtype.itemsize, 1):
            yield _gate_source(dtype, access)


def _conv_call(call: OpCall, mixed: TensorLayout) -> OpCall:
    spec = spec_of("causal_conv1d")
    names = ("conv_input", "conv_weight", "conv_bias", "conv_state", "context_lengths")
    inputs = tuple(call.inputs[call.spec.input_index(name)] for name in names)
    attributes = {"activation": call.attributes["activation"]}
    return OpCall(spec, inputs, (mixed, call.outputs[1]), attributes, call.packed)


def _scan_call(call: OpCall, mixed: TensorLayout, groups: int) -> OpCall:
    """The state update of slices of ``mixed``; y [..., inner] is seen as [..., heads, head_dim]."""
    spec = spec_of("update_ssm_state")
    heads, head_dim, state_size = call.input("state").shape[1:]

    def split(layout: TensorLayout, outer: int, inner: int, offset: int = 0) -> TensorLayout:
        at = offset * layout.dtype.itemsize
        aligned = math.gcd(layout.alignment, at) if at else layout.alignment
        shape, strides = (*layout.shape[:-1], outer, inner), (*layout.strides[:-1], inner, 1)
        return TensorLayout(layout.dtype, shape, strides, aligned)

    group = (groups, state_size)
    slices = {
        "x": split(mixed, heads, head_dim),
        "B": split(mixed, *group, offset=heads * head_dim),
        "C": split(mixed, *group, offset=heads * head_dim + groups * state_size),
    }
    given = {tensor.name: layout for tensor, layout in zip(call.spec.inputs, call.inputs, strict=True)}
    inputs = tuple(slices.get(tensor.name) or given[tensor.name] for tensor in spec.inputs)
    outputs = (split(call.outputs[0], heads, head_dim), call.outputs[2])
    attributes = {attribute.name: call.attributes[attribute.name] for attribute in spec.attributes}
    return OpCall(spec, inputs, outputs, attributes, call.packed)


def _inputs(
    call: OpCall, op: str, names: Mapping[str, str], here: Mapping[str, PointerSource]
) -> tuple[PointerSource, ...]:
    """Where the inputs of ``op`` come from: ``here``, or the input of ``call`` with the name that ``names`` gives."""
    tensors = spec_of(op).inputs
    own = call.spec.input_index
    return tuple(here.get(t.name) or PointerSource(Memory.INPUT, own(names.get(t.name, t.name))) for t in tensors)


def _moved(
    launch: KernelLaunch,
    inputs: tuple[PointerSource, ...],
    outputs: tuple[PointerSource, ...],
    workspace_offset: int,
) -> KernelLaunch:
    """``launch`` of a part, with its pointers seen from the whole call."""

    def moved(source: PointerSource) -> PointerSource:
        if source.memory is Memory.PACKED:
            return source
        if source.memory is Memory.WORKSPACE:
            return replace(source, offset=source.offset + workspace_offset)
        place = (inputs if source.memory is Memory.INPUT else outputs)[source.index]
        return replace(place, offset=place.offset + source.offset)

    return replace(launch, pointers={field: moved(source) for field, source in launch.pointers.items()})


def gate_launch(call: OpCall, device: DeviceTraits) -> KernelLaunch:
    """y of every token times silu(gate), in place."""
    gate, y = call.input("gate"), call.outputs[0]
    gate.need_dense_tail("gate", 1)
    y.need_dense_tail("y", 1)
    params = struct_type(GATE_FILE, "Gate")()
    params.gate_row, params.gate_token = row_and_token_stride(call, gate, trailing=1)
    params.y_row, params.y_token = row_and_token_stride(call, y, trailing=1)
    params.width = gate.shape[-1]
    params.rows.rows = call.packed.rows if call.packed is not None else gate.shape[0]
    params.rows.time = token_count(call)
    access = math.gcd(access_bytes(gate, y, axes=len(gate.shape) - 1) // gate.dtype.itemsize, params.width)
    across = -(-params.width // (access * _GATE_THREADS))
    grid = (across, min(params.rows.time, _LARGEST_GRID_YZ), params.rows.rows)
    pointers = {
        "gate": PointerSource(Memory.INPUT, call.spec.input_index("gate")),
        "y": PointerSource(Memory.OUTPUT, 0),
    } | row_pointers(call, "rows.")
    overlap = device.is_hopper_or_later
    return KernelLaunch(
        _gate_source(gate.dtype, access), grid, (_GATE_THREADS, 1, 1), params, pointers, overlap=overlap
    )


def _gate_source(dtype: DType, access: int) -> KernelSource:
    defines = {"DATA_T": dtype, "ACCESS": access, "THREADS": _GATE_THREADS}
    return KernelSource.of(GATE_FILE, "mamba2_gate", defines)
