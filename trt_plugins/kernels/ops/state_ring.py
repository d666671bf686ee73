"""Kernels of the recurrent operators over states with rings, in the form of exported graphs (specs/state_ring.py).

One launch over all rows adds single tokens to their rings, or flushes the rings into the states. The plain operator's
launches follow, for the rows with more tokens; then one for the lengths. All are updated in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hybridge.artifact.errors import UnsupportedError
from hybridge.artifact.state_rings import RING_LENGTHS
from hybridge.trt_plugins.catalog import OPS
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, OpCall, PointerSource
from hybridge.trt_plugins.kernels.ops import gated_delta_rule, gated_delta_rule_decode, update_ssm_state
from hybridge.trt_plugins.kernels.ops.draft_rows import ACCEPTED, LONGER_ROWS, is_speculative
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_call import DeltaCall
from hybridge.trt_plugins.kernels.ops.rows import row_pointers
from hybridge.trt_plugins.kernels.source import KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type
from hybridge.trt_plugins.specs.ring import RING
from hybridge.trt_plugins.specs.state_forms import base_name
from hybridge.trt_plugins.specs.state_ring import STATE, ring_names

FILE = "state_ring/count_tokens.cu"
_THREADS = 64


def plan(call: OpCall, device: DeviceTraits) -> CallPlan:
    """The launches that run ``call``; UnsupportedError as of the plain operator, and for rings with gaps."""
    tensors = dict(zip((tensor.name for tensor in call.spec.inputs), call.inputs, strict=True))
    for name in (*ring_names(call.spec), RING_LENGTHS):
        layout = call.input(name)
        layout.need_dense_tail(name, len(layout.shape))
    spec = OPS[base_name(call.spec.name)]
    plain = replace(
        call, spec=spec, inputs=tuple(tensors[tensor.name] for tensor in spec.inputs), outputs=call.outputs[:2]
    )
    prompts = _has_prompts(plain)
    most_added = int(not is_speculative(call) and (call.packed is not None or not prompts))
    launches = [_ring_launch(plain, device, most_added)]
    rest = _plain_plan(plain, device) if prompts or not most_added else CallPlan(())
    launches += (_longer_rows(launch) if most_added else launch for launch in rest.launches)
    own = [replace(launch, pointers=_moved(call, plain, launch)) for launch in launches]
    own.append(_count_launch(call, most_added, device))
    name = " + ".join(launch.source.entry for launch in own)
    return CallPlan(tuple(own), rest.workspace_bytes, name, rest.counter_bytes)


def sources() -> Iterator[KernelSource]:
    """The kernel that counts tokens; the others are those of the plain operators."""
    yield KernelSource.of(FILE, "count_ring_tokens", {"THREADS": _THREADS, "RING": RING})


def plan_count(rows: int, device: DeviceTraits) -> CallPlan:
    """A token more in the rings of ``rows`` rows, or none where they are full. Input: slots [rows] int32, -1 for none;
    output: lengths [slots]."""
    (source,) = sources()
    params = struct_type(FILE, "RingLengths")()
    params.rows.rows, params.rows.time, params.most_added = rows, 1, 1
    pointers = {"rows.state_indices": PointerSource(Memory.INPUT), "lengths": PointerSource(Memory.OUTPUT)}
    grid, overlap = (-(-rows // _THREADS), 1, 1), device.is_hopper_or_later
    return CallPlan((KernelLaunch(source, grid, (_THREADS, 1, 1), params, pointers, overlap=overlap),))


def _has_prompts(plain: OpCall) -> bool:
    """Whether a row may have several tokens."""
    if plain.packed is not None:
        return plain.packed.max_row_tokens > 1
    data, dims = plain.inputs[0], plain.spec.inputs[0].dims
    assert data is not None
    return len(data.shape) == len(dims) and data.shape[1] > 1


def _ring_launch(plain: OpCall, device: DeviceTraits, most_added: int) -> KernelLaunch:
    """The launch over the rings of all rows, which has the pointers of ``kernels.ops.ring``."""
    drafts = plain.packed.draft_slots if plain.packed is not None else 0
    if plain.packed is not None and not plain.packed.has_state_indices:
        raise UnsupportedError(f"{plain.spec.name}: expected state_indices of rows with rings, found none; pass them")
    rows = plain if plain.packed is None else replace(plain, packed=replace(plain.packed, draft_slots=0))
    if plain.spec.name == update_ssm_state.NAME:
        launch = update_ssm_state.ring_launch(rows, device)
    else:
        launch = gated_delta_rule_decode.ring_launch(DeltaCall.of(rows), device)
    launch.params.most_added, launch.params.flushes_empty = most_added, 0
    if not drafts:
        return launch
    launch.params.decode.rows.draft_slots = drafts
    return replace(launch, pointers={**launch.pointers, "decode.rows.num_accepted": ACCEPTED})


def _plain_plan(plain: OpCall, device: DeviceTraits) -> CallPlan:
    module: Any = update_ssm_state if plain.spec.name == update_ssm_state.NAME else gated_delta_rule
    found: CallPlan = module.plan(plain, device)
    return found


def _longer_rows(launch: KernelLaunch) -> KernelLaunch:
    """``launch`` over the packed rows of more than one token."""
    params = type(launch.params).from_buffer_copy(launch.params)
    params.rows.draft_slots, params.rows.part = 1, LONGER_ROWS
    return replace(launch, params=params)


def _count_launch(call: OpCall, most_added: int, device: DeviceTraits) -> KernelLaunch:
    params, state = struct_type(FILE, "RingLengths")(), call.input(STATE)
    rows = call.packed.rows if call.packed is not None else state.shape[0]
    params.rows.rows, params.most_added = rows, most_added
    pointers = row_pointers(call, "rows.") | {"lengths": PointerSource(Memory.OUTPUT, len(call.outputs) - 1)}
    if call.packed is None:
        data = call.inputs[0]
        assert data is not None
        params.rows.time = data.shape[1] if len(data.shape) == len(OPS[call.spec.name].inputs[0].dims) else 1
    elif call.packed.draft_slots:
        params.rows.draft_slots = call.packed.draft_slots
        pointers["rows.num_accepted"] = ACCEPTED
    (source,) = sources()
    return KernelLaunch(source, (-(-rows // _THREADS), 1, 1), (_THREADS, 1, 1), params, pointers)


def _moved(call: OpCall, plain: OpCall, launch: KernelLaunch) -> dict[str, PointerSource]:
    """The pointers of ``launch``, of ``plain`` with a ring behind its inputs, for the inputs of ``call``."""
    names = [*(tensor.name for tensor in plain.spec.inputs), *ring_names(call.spec), RING_LENGTHS]

    def moved(source: PointerSource) -> PointerSource:
        if source.memory is not Memory.INPUT:
            return source
        return replace(source, index=call.spec.input_index(names[source.index]))

    return {field: moved(source) for field, source in launch.pointers.items()}
