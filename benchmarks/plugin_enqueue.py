"""Host time of a plugin's ``enqueue``: the time in Python before TensorRT enqueues the next layer.

Needs a CUDA GPU. TensorRT's classes are the installed ones, or the tests' stand-in, which costs the same: an
``enqueue`` uses nothing of TensorRT. Sizes are small, so that the GPU keeps up and a launch never waits for room in
the queue. Decode captured in a CUDA graph pays none of this time.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.machine import device_json
from benchmarks.runner import Gate, Report, Target
from hybridge.trt_plugins.kernels.catalog import dense_operators
from hybridge.trt_plugins.plugins.registration import PluginRegistration
from tests.plugins import stand_in
from tests.support.plugin_calls import PluginCall, created_plugin, plugin_call

MOST_US = 12.0
TOLERANCE = 3e-3  # of each launch: kernels hand each other 16-bit values
# Every dim of the operators but batch and time.
SIZES = {"heads": 8, "head_dim": 64, "groups": 1, "state_size": 128, "inner": 512, "conv_dim": 768, "kernel": 4}
SIZES |= {"key_heads": 4, "value_heads": 8, "key_size": 128, "value_size": 128, "decay_size": 1}
FORMS = {"decode, 1 row": (1, 1), "prefill, 1 row of 256": (1, 256)}
WAIT_EVERY = 50


@dataclass(frozen=True)
class EnqueueSettings:
    """calls: of each row."""

    calls: int = 4000


def run(settings: EnqueueSettings) -> Report:
    """Time every operator's plugin. Every row says whether its result is correct."""
    trt = _tensorrt()
    rows = [_row(trt, op, form, settings.calls) for op in dense_operators() for form in FORMS]
    gate = Gate("rows with a wrong result", float(sum(not row["correct"] for row in rows)), 0.0)
    targets = [
        Target(f"{row['op']}, {row['form']}", row["us"]["median"], "at most", MOST_US, "us")
        for row in rows
        if row["correct"]
    ]
    results = {"device": device_json(), "tensorrt": trt.__name__, "rows": rows}
    return Report((gate,), results, tuple(targets), partial=True)


def _tensorrt() -> Any:
    for name in ("tensorrt", "tensorrt_rtx"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return stand_in


def _row(trt: Any, op: str, form: str, calls: int) -> dict[str, Any]:
    batch, tokens = FORMS[form]
    attributes = {"activation": "silu"} if op == "causal_conv1d" else {}
    sizes = {**SIZES, "batch": batch, "time": tokens}
    call = plugin_call(op, sizes, torch.bfloat16, [tokens] * batch, attributes, in_place=True)
    plugin = created_plugin(trt, PluginRegistration(trt), call, {"batch": batch, "time": tokens})
    expected = call.reference()
    descs = call.descs(trt)
    plugin.on_shape_change(*descs)
    plugin.enqueue(*descs, *call.addresses(), torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    error = max(float((o.double() - e).norm() / e.norm()) for o, e in zip(call.outputs, expected, strict=True))
    launches = len(plugin.core.bound.plan.launches)
    row: dict[str, Any] = {"op": op, "form": form, "launches": launches, "error": error}
    row["correct"] = error <= TOLERANCE * launches
    if row["correct"]:
        times = sorted(_times(plugin, call, descs, calls))
        row["us"] = {"median": times[calls // 2], "least": times[0], "p95": times[calls * 95 // 100]}
    return row


def _times(plugin: Any, call: PluginCall, descs: tuple[list[Any], list[Any]], calls: int) -> list[float]:
    """Microseconds of each call; the lists are new in each one, as TensorRT makes them."""
    stream = torch.cuda.current_stream().cuda_stream
    inputs, outputs, workspace = call.addresses()
    times = []
    for index in range(calls):
        given, written = list(inputs), list(outputs)
        started = time.perf_counter_ns()
        plugin.enqueue(*descs, given, written, workspace, stream)
        times.append((time.perf_counter_ns() - started) / 1e3)
        if index % WAIT_EVERY == 0:
            torch.cuda.synchronize()
    return times
