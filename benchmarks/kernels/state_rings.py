"""One-token kernels over float32 states with rings, beside those that write every state, timed in the same run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from benchmarks.kernels.tensor_call import TensorCall, int32, layout_of, normal, poisoned, worst_error
from benchmarks.kernels.timing import graph_times, input_sets
from benchmarks.runner import Gate
from hybridge.trt_plugins.catalog import OPS
from hybridge.trt_plugins.kernels import catalog
from hybridge.trt_plugins.kernels.call import OpCall, PackedRows
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.ops.ring import plan_ring
from hybridge.trt_plugins.reference.gated_delta_rule import gated_delta_rule
from hybridge.trt_plugins.reference.ring import flushed_state
from hybridge.trt_plugins.reference.update_ssm_state import update_ssm_state
from hybridge.trt_plugins.specs.ring import RING, RINGS

TOLERANCE = 3e-3
_BF16 = torch.bfloat16
_EAGER: dict[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = {
    "update_ssm_state": update_ssm_state,
    "gated_delta_rule": gated_delta_rule,
}


class Runs(NamedTuple):
    """Enqueue the plain call, and the one with rings; ``y``: the output of both."""

    plain: Callable[[], object]
    ringed: Callable[[], object]
    y: torch.Tensor


@dataclass(frozen=True)
class RingCall:
    """Inputs of one token a row, [rows, ...], the state among them, and rings at every length."""

    operator: str
    inputs: list[torch.Tensor]
    attributes: dict[str, Any]
    ring: list[torch.Tensor]
    lengths: torch.Tensor

    @property
    def state(self) -> torch.Tensor:
        return self.inputs[OPS[self.operator].input_index("state")]

    def runs(self) -> Runs:
        """Both calls over these tensors."""
        rows, spec = len(self.lengths), OPS[self.operator]
        y = poisoned(*self.inputs[spec.output_source(spec.outputs[0])].shape)
        layouts = (*map(layout_of, self.inputs), None)
        call = OpCall(spec, layouts, (layout_of(y), layout_of(self.state)), self.attributes, PackedRows(rows, 1))
        device = KernelDevice.current()
        row = torch.arange(rows + 1, dtype=torch.int32, device="cuda")
        plain, ringed = (
            TensorCall(device, planned, [*self.inputs, None, *extra], [y, self.state], [row, row[:-1]])
            for planned, extra in (
                (catalog.plan(call, device.traits), []),
                (plan_ring(call, device.traits), [*self.ring, self.lengths]),
            )
        )
        return Runs(plain, ringed, y)


def measured_kernels(rows: int) -> tuple[tuple[Gate, ...], dict[str, Any]]:
    """Gates against float64, and microseconds of both kernels of each operator; no times where a gate failed."""
    gates: list[Gate] = []
    found: dict[str, Any] = {}
    for name, make in _MADE.items():
        first = make(rows)
        gates.append(Gate(f"{name} with rings against float64", _error(first), TOLERANCE))
        if not gates[-1].passed:
            continue
        sets = input_sets(2 * first.state.nbytes)
        runs = [make(rows).runs() for _ in range(sets)]
        times = graph_times({"plain_us": [each.plain for each in runs], "rings_us": [each.ringed for each in runs]})
        found[name] = {**times, "ratio": times["plain_us"].median / times["rings_us"].median}
    return tuple(gates), found


def _error(call: RingCall) -> float:
    """Of the output, and of the flushed states."""
    before = flushed_state(call.operator, call.state.double(), call.ring, call.lengths)
    given = [each.double() for each in call.inputs]
    given[OPS[call.operator].input_index("state")] = before
    expected = _EAGER[call.operator](*given, int32(len(call.lengths), 1), *call.attributes.values())
    runs = call.runs()
    runs.ringed()
    lengths = (call.lengths + 1) % RING
    return worst_error((runs.y, flushed_state(call.operator, call.state.double(), call.ring, lengths)), expected)


def _made(operator: str, rows: int, inputs: list[torch.Tensor], **attributes: object) -> RingCall:
    spec = OPS[operator]
    shapes = {tensor.name: tuple(value.shape) for tensor, value in zip(spec.inputs, inputs, strict=False)}
    ring = [
        normal(rows, *tensor.shape(spec, shapes), dtype=_BF16 if tensor.dtype is None else torch.float32)
        for tensor in RINGS[operator]
    ]
    # The logarithm of a decay is at most 0.
    ring[2] = 0.1 * ring[2].abs() * (torch.tensor([-1.0, 1.0], device="cuda") if ring[2].shape[-1] == 2 else -1)
    lengths = torch.arange(rows, dtype=torch.int32, device="cuda") % RING
    return RingCall(operator, inputs, spec.complete_attributes(attributes), ring, lengths)


def _ssm(rows: int, heads: int = 128, groups: int = 8) -> RingCall:
    """Nemotron-H's mixer."""
    x, B, C = normal(rows, heads, 64, dtype=_BF16), *(normal(rows, groups, 128, dtype=_BF16) for _ in range(2))
    A, D, bias = -8 * torch.rand(heads, device="cuda"), normal(heads), normal(heads)
    return _made(
        "update_ssm_state", rows, [x, A, B, C, D, normal(rows, heads, dtype=_BF16), bias, normal(rows, heads, 64, 128)]
    )


def _delta(rows: int, key_heads: int, heads: int, decay: str) -> RingCall:
    q, k = (normal(rows, key_heads, 128, dtype=_BF16) for _ in range(2))
    g = -torch.rand(rows, heads, 128 if decay == "key_channel" else 1, device="cuda")
    beta = torch.rand(rows, heads, device="cuda").to(_BF16)
    state = normal(rows, heads, 128, 128) / math.sqrt(128)
    inputs = [q, k, normal(rows, heads, 128, dtype=_BF16), g, beta, state]
    return _made("gated_delta_rule", rows, inputs, decay=decay)


_MADE: dict[str, Callable[[int], RingCall]] = {
    "update_ssm_state": _ssm,
    "gated_delta_rule": lambda rows: _delta(rows, 16, 32, "head"),
    "gated_delta_rule, key channels": lambda rows: _delta(rows, 32, 32, "key_channel"),
}
