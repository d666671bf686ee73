"""``mamba2_conv_scan`` as kernels of its parts: a convolution, then a state update, or a chunked scan, that gates y."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, OpCall, PointerSource
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.ops import causal_conv1d, update_ssm_state
from hybridge.trt_plugins.kernels.ops.rows import token_count
from hybridge.trt_plugins.kernels.ops.update_ssm_state_prefill import plan_prefill

_ALIGNMENT = 256


def plan_parts(call: OpCall, groups: int, device: DeviceTraits) -> CallPlan:
    """The convolution writes x, B and C to the workspace, where the state update reads them."""
    conv_input, gate = call.input("conv_input"), call.input("gate")
    mixed = TensorLayout.contiguous(conv_input.dtype, conv_input.shape)
    mixed_bytes = -(-math.prod(mixed.shape) * mixed.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
    conv = causal_conv1d.plan(_conv_call(call, mixed), device)
    scan_call = _scan_call(call, mixed, groups)
    if token_count(call) == 1:
        scan = CallPlan((update_ssm_state.decode_launch(scan_call, device, gate),))
    else:
        scan = plan_prefill(scan_call, device, gate)
    launches = (*_conv_launches(call, conv, mixed_bytes), *_scan_launches(call, scan, groups, mixed_bytes))
    workspace = mixed_bytes + max(conv.workspace_bytes, scan.workspace_bytes)
    return CallPlan(launches, workspace, " + ".join(launch.source.entry for launch in launches))


def _conv_launches(call: OpCall, conv: CallPlan, mixed_bytes: int) -> tuple[KernelLaunch, ...]:
    names = {"x": "conv_input", "weight": "conv_weight", "bias": "conv_bias"}
    inputs = _inputs(call, "causal_conv1d", names, {})
    outputs = (PointerSource(Memory.WORKSPACE), PointerSource(Memory.OUTPUT, 1))
    return tuple(_moved(launch, inputs, outputs, mixed_bytes) for launch in conv.launches)


def _scan_launches(call: OpCall, scan: CallPlan, groups: int, mixed_bytes: int) -> tuple[KernelLaunch, ...]:
    state, item = call.input("state"), call.input("conv_input").dtype.itemsize
    inner, width = math.prod(state.shape[1:3]), groups * state.shape[3]
    offsets = {"x": 0, "B": inner, "C": inner + width}
    here = {name: PointerSource(Memory.WORKSPACE, 0, at * item) for name, at in offsets.items()}
    inputs = _inputs(call, "update_ssm_state", {}, here)
    outputs = (PointerSource(Memory.OUTPUT, 0), PointerSource(Memory.OUTPUT, 2))
    launches = (_moved(launch, inputs, outputs, mixed_bytes) for launch in scan.launches)
    gate = {"gate": PointerSource(Memory.INPUT, call.spec.input_index("gate"))}
    return tuple(replace(launch, pointers={**launch.pointers, **gate}) for launch in launches)


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
