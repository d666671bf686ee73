"""TensorRT may choose between a plugin's algorithms: which are offered, what a chosen one runs, what clones know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.kernels.call import DeviceTraits, OpCall
from hybridge.trt_plugins.kernels.catalog import dense_operators, plan, variants
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.plugins.calls import CallRange, largest_workspace
from hybridge.trt_plugins.plugins.op_plugin import OpPlugin
from hybridge.trt_plugins.plugins.tactics import tactics
from tests.plugins.planner_double import DeviceDouble, plugin_layer
from tests.plugins.test_workspace_bound import SIZES, call_range

HOPPER = DeviceTraits((9, 0), 132, 232448, 50 << 20)
# Batch and time of a profile, least and most; of products the sizes that only some GPUs have.
DECODE, PREFILL, SHORT = (1, 1), (1, 700), (2, 8)
OFFERED = [
    ("mamba2_conv_scan", "9.0", DECODE, ["parts"]),
    # No clusters, so that there is one algorithm.
    ("mamba2_conv_scan", "8.6", DECODE, []),
    ("gated_delta_rule", "8.6", DECODE, []),
    ("gated_delta_rule", "8.6", PREFILL, ["walk", "chunks"]),
    ("gated_delta_rule", "8.6", SHORT, ["chunks"]),
    ("update_ssm_state", "9.0", PREFILL, ["mma"]),
    ("update_ssm_state", "8.9", PREFILL, []),
    ("update_ssm_state", "9.0", DECODE, []),
    ("causal_conv1d", "9.0", PREFILL, []),
]


def calls_of(op: str, time: tuple[int, int], version: int = 1) -> CallRange:
    found = call_range(op, version)
    return replace(found, dims=tuple((name, time if name == "time" else bounds) for name, bounds in found.dims))


@pytest.mark.parametrize(("op", "capability", "time", "expected"), OFFERED)
def test_what_differs_is_offered(op: str, capability: str, time: tuple[int, int], expected: list[str]) -> None:
    found = tactics(calls_of(op, time), (capability,), plan, variants(op))
    assert [call.variant for call in found.values()] == ["", *expected]
    assert list(found) == [1, *(2 + variants(op).index(name) for name in expected)]


def plugin_of(op: str, version: int = 1, device: DeviceDouble | None = None) -> OpPlugin:
    layer = plugin_layer(op, workspace=1 << 30)
    found = device or DeviceDouble()
    found.traits = HOPPER
    return OpPlugin(replace(layer, capabilities=("9.0",)), plan, lambda: found, variants(op))


def test_the_plugin_offers_them_once_it_knows_its_calls() -> None:
    plugin = plugin_of("gated_delta_rule")
    assert plugin.tactics() == ()
    plugin.configure(calls_of("gated_delta_rule", PREFILL))
    assert plugin.tactics() == plugin.clone().tactics() == (1, 2, 3)
    plugin.configure(calls_of("gated_delta_rule", DECODE))
    assert plugin.tactics() == ()


@pytest.mark.parametrize("op", dense_operators())
def test_the_workspace_is_enough_for_every_tactic(op: str) -> None:
    plugin, calls = plugin_of(op), calls_of(op, PREFILL)
    nbytes = plugin.workspace_bytes(calls)
    offered = tactics(calls, ("9.0",), plan, variants(op))
    assert nbytes == max(largest_workspace(call, ("9.0",), plan) for call in offered.values())


def layouts(calls: CallRange, **sizes: int) -> tuple[list[TensorLayout], list[TensorLayout]]:
    call: OpCall = calls.call({**SIZES, **sizes})
    inputs = [layout for layout in call.inputs if layout is not None]
    return inputs, list(call.outputs)


@pytest.mark.parametrize(
    ("op", "time", "entries"),
    [
        ("gated_delta_rule", 20, {0: 2, 1: 2, 2: 1, 3: 2}),
        ("gated_delta_rule", 5, {0: 1, 1: 1, 2: 1, 3: 2}),
        # Longer than walks ever are.
        ("gated_delta_rule", 600, {0: 2, 1: 2, 2: 2, 3: 2}),
    ],
)
def test_the_chosen_algorithm_runs(op: str, time: int, entries: dict[int, int]) -> None:
    device = DeviceDouble()
    plugin, calls = plugin_of(op, device=device), calls_of(op, (time, time))
    for tactic, launches in entries.items():
        plugin.choose(tactic)
        for prepared in (plugin, plugin.clone()):
            prepared.prepare(*layouts(calls, batch=2, time=time))
            assert prepared.bound is not None and len(prepared.bound.plan.launches) == launches, tactic


def test_a_choice_forgets_what_was_prepared_for_another() -> None:
    device = DeviceDouble()
    plugin, calls = plugin_of("gated_delta_rule", device=device), calls_of("gated_delta_rule", SHORT)
    plugin.prepare(*layouts(calls, batch=1, time=4))
    plugin.choose(1)
    assert plugin.bound is not None
    plugin.choose(3)
    assert plugin.bound is None
    plugin.prepare(*layouts(calls, batch=1, time=4))
    assert [len(bound.plan.launches) for bound in device.bound] == [1, 2]


@pytest.mark.parametrize("tactic", [-1, 4])
def test_a_number_that_was_never_offered_is_refused(tactic: int) -> None:
    with pytest.raises(EngineError, match=rf"a tactic from 0 to 3, found {tactic}: build the engine again"):
        plugin_of("gated_delta_rule").choose(tactic)


def test_packed_calls_have_them_too() -> None:
    found = tactics(call_range("gated_delta_rule", 2), ("8.6",), plan, variants("gated_delta_rule"))
    assert list(found) == [1, 2, 3]
