"""Every plugin's enqueue with real device pointers against the float64 reference, as TensorRT would call it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.kernels.catalog import dense_operators, variants
from hybridge.trt_plugins.plugins.registration import PluginRegistration
from tests.support.plugin_calls import PluginCall, created_plugin, plugin_call

pytestmark = pytest.mark.gpu

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Relative norm against float64: 16-bit data with a state in float32; float32 sums in another order.
TOLERANCE = {F32: 1e-5, F16: 3e-3, BF16: 3e-3}
SIZES = {"heads": 6, "head_dim": 24, "groups": 3, "state_size": 40, "inner": 144, "conv_dim": 384, "kernel": 4}
SIZES |= {"channels": 144, "key_heads": 2, "value_heads": 6, "key_size": 48, "value_size": 80, "decay_size": 1}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "causal_conv1d": {"activation": "silu"},
    "update_ssm_state": {},
    "mamba2_conv_scan": {},
    "gated_delta_rule": {},
    "selective_scan": {},
}
# Kernels of an operator that hand 16-bit values to each other round again each.
LAUNCHES = {"mamba2_conv_scan": 3}
MOST = {"batch": 4, "time": 200}
# Tokens of a call and of its rows.
PREFILL, DECODE = (129, (129, 0, 65)), (1, (1, 0, 1))


@pytest.fixture
def registration(trt: Any) -> PluginRegistration:
    return PluginRegistration(trt)


def call_of(
    op: str, form: tuple[int, tuple[int, ...]], dtype: torch.dtype = BF16, in_place: bool = False
) -> PluginCall:
    torch.manual_seed(0)
    time, lengths = form
    return plugin_call(op, {**SIZES, "batch": len(lengths), "time": time}, dtype, lengths, ATTRIBUTES[op], in_place)


def check(call: PluginCall, expected: tuple[torch.Tensor, ...], tolerance: float) -> None:
    torch.cuda.synchronize()
    if call.inputs[0].dtype is not F32:
        tolerance *= LAUNCHES.get(call.spec.name, 1)
    for output, found, wanted in zip(call.spec.outputs, call.outputs, expected, strict=True):
        error = (found.double() - wanted).norm() / wanted.norm()
        assert error <= tolerance, f"{output.name}: relative error {error:.3g}"


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("form", [PREFILL, DECODE], ids=["prefill", "decode"])
@pytest.mark.parametrize("op", dense_operators())
def test_results(trt: Any, registration: PluginRegistration, op: str, form: Any, dtype: Any, in_place: bool) -> None:
    call = call_of(op, form, dtype, in_place)
    plugin = created_plugin(trt, registration, call, MOST)
    expected = call.reference()
    descs = call.descs(trt)
    torch.cuda.synchronize()
    plugin.on_shape_change(*descs)
    plugin.enqueue(*descs, *call.addresses(), torch.cuda.current_stream().cuda_stream)
    check(call, expected, TOLERANCE[dtype])


@pytest.mark.parametrize("form", [PREFILL, DECODE, (5, (5, 0, 2))], ids=["prefill", "decode", "short"])
@pytest.mark.parametrize("op", [op for op in dense_operators() if variants(op)])
def test_every_tactic_is_right_and_repeats_its_bits(
    trt: Any, registration: PluginRegistration, op: str, form: Any
) -> None:
    call = call_of(op, form)
    plugin = created_plugin(trt, registration, call, MOST)
    expected, descs = call.reference(), call.descs(trt)
    for tactic in range(2 + len(variants(op))):
        plugin.set_tactic(tactic)
        plugin.on_shape_change(*descs)
        found = []
        for _ in range(2):
            for output in call.outputs:
                output.fill_(float("nan"))
            torch.cuda.synchronize()
            plugin.enqueue(*descs, *call.addresses(), torch.cuda.current_stream().cuda_stream)
            check(call, expected, TOLERANCE[BF16])
            found.append([output.clone() for output in call.outputs])
        for first, second in zip(*found, strict=True):
            assert torch.equal(first.view(torch.uint8), second.view(torch.uint8)), tactic


def cuda_core_stream() -> Any:
    from cuda.core import Device

    device = Device()
    device.set_current()
    return device.create_stream()


@pytest.mark.parametrize("make_stream", [torch.cuda.Stream, cuda_core_stream, lambda: None])
@pytest.mark.parametrize("op", dense_operators())
def test_streams_and_tensors_of_other_libraries(
    trt: Any, registration: PluginRegistration, op: str, make_stream: Callable[[], Any]
) -> None:
    """A stream of torch, of cuda.core, the default one; tensors in place of addresses; no call of on_shape_change."""
    call = call_of(op, PREFILL)
    plugin = created_plugin(trt, registration, call, MOST)
    expected = call.reference()
    torch.cuda.synchronize()
    plugin.enqueue(*call.descs(trt), call.inputs, call.outputs, call.workspace, make_stream())
    check(call, expected, TOLERANCE[BF16])


@pytest.mark.parametrize("op", dense_operators())
def test_contexts_alternate(trt: Any, registration: PluginRegistration, op: str) -> None:
    """Two contexts of one engine with different shapes and workspaces, on two streams."""
    calls = [call_of(op, PREFILL), call_of(op, DECODE)]
    engine = created_plugin(trt, registration, calls[0], MOST)
    calls[1].workspace = torch.full_like(calls[0].workspace, float("nan"))
    plugins = [engine.attach_to_context(None) for _ in calls]
    expected = [call.reference() for call in calls]
    streams = [torch.cuda.Stream() for _ in calls]
    torch.cuda.synchronize()
    for plugin, call in zip(plugins, calls, strict=True):
        plugin.on_shape_change(*call.descs(trt))
    for _ in range(3):
        for plugin, call, stream in zip(plugins, calls, streams, strict=True):
            plugin.enqueue(*call.descs(trt), *call.addresses(), stream.cuda_stream)
    for call, wanted in zip(calls, expected, strict=True):
        check(call, wanted, TOLERANCE[BF16])


@pytest.mark.parametrize("op", dense_operators())
def test_shapes_change_to_and_fro(trt: Any, registration: PluginRegistration, op: str) -> None:
    calls = [call_of(op, form) for form in (PREFILL, DECODE, (7, (7, 3)), PREFILL)]
    plugin = created_plugin(trt, registration, calls[0], MOST)
    stream = torch.cuda.current_stream().cuda_stream
    for call in calls:
        expected = call.reference()
        call.workspace = calls[0].workspace
        plugin.on_shape_change(*call.descs(trt))
        plugin.enqueue(*call.descs(trt), *call.addresses(), stream)
        check(call, expected, TOLERANCE[BF16])


@pytest.mark.parametrize("op", dense_operators())
def test_a_captured_enqueue_replays(trt: Any, registration: PluginRegistration, op: str) -> None:
    """Decode runs in a CUDA graph: an enqueue must not do what a capture forbids."""
    call = call_of(op, DECODE, in_place=True)
    plugin = created_plugin(trt, registration, call, MOST)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    plugin.on_shape_change(*call.descs(trt))
    with torch.cuda.graph(graph, stream=stream):
        plugin.enqueue(*call.descs(trt), *call.addresses(), torch.cuda.current_stream().cuda_stream)
    for _ in range(2):
        expected = call.reference()
        graph.replay()
        check(call, expected, TOLERANCE[BF16])


def test_a_refused_launch_is_an_error(trt: Any, registration: PluginRegistration) -> None:
    call = call_of("causal_conv1d", DECODE)
    plugin = created_plugin(trt, registration, call, MOST)
    words = f"plugin causal_conv1d of layer layers.0.mixer, enqueue with x {list(call.inputs[0].shape)}"
    with pytest.raises(EngineError, match=re.escape(words)) as caught:
        plugin.enqueue(*call.descs(trt), *call.addresses(), "no stream")
    assert registration.errors.take() is caught.value
