"""Plugins of a computed network are called as an engine calls them; the kernels are computed by the reference."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.tensorrt_network.enqueued import EnqueuedPlugins
from hybridge.runtime.engines.tensorrt_network.interpreter import NetworkInterpreter
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall
from hybridge.trt_plugins.network.description import PLUGIN, NetworkDescription, NetworkLayer, NetworkTensor
from hybridge.trt_plugins.plugins.registration import PluginRegistration
from hybridge.trt_plugins.reference.causal_conv1d import causal_conv1d
from tests.plugins.planner_double import ADA

SHAPES = {"x": (2, 5, 8), "weight": (8, 1, 4), "bias": (8,), "conv_state": (2, 8, 4), "context_lengths": (2,)}
WORKSPACE = 512


class ReferenceDevice:
    """Plans calls of causal_conv1d, and computes them in memory by address."""

    traits = ADA

    def __init__(self) -> None:
        self.calls: list[OpCall] = []
        self.launches = 0

    def plan(self, call: OpCall, traits: DeviceTraits) -> CallPlan:
        self.calls.append(call)
        return CallPlan((), WORKSPACE)

    def bind(self, plan: CallPlan) -> Any:
        return self

    def launch(self, stream: int, inputs: Sequence[int], outputs: Sequence[int], workspace: int = 0) -> None:
        call = self.calls[-1]
        self.launches += 1
        assert bytes((ctypes.c_uint8 * WORKSPACE).from_address(workspace)) == b"\xff" * WORKSPACE
        values = [_at(address, layout) for address, layout in zip(inputs, call.inputs, strict=True)]
        found = causal_conv1d(*(value.clone() for value in values), **call.attributes)
        for address, layout, value in zip(outputs, call.outputs, found, strict=True):
            _at(address, layout).copy_(value)


def _at(address: int, layout: Any) -> torch.Tensor:
    dtype = layout.dtype.numpy
    count = int(np.prod(layout.shape))
    memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return torch.from_numpy(np.frombuffer(memory, dtype).reshape(layout.shape))


def network(aliased: bool) -> NetworkDescription:
    """One plugin; its state is an input of the network."""
    attributes = {
        "operator": "causal_conv1d",
        "version": 1,
        "fields": {"activation": "silu"},
        "capabilities": ["8.9"],
        "aliased": aliased,
    }
    layer = NetworkLayer(PLUGIN, "layers.0.conv", tuple(SHAPES), ("y", "conv_state_out"), attributes)
    shapes = {**SHAPES, "y": SHAPES["x"], "conv_state_out": SHAPES["conv_state"]}
    types = {name: DType.INT32 if name == "context_lengths" else DType.FLOAT32 for name in shapes}
    tensors = {name: NetworkTensor(name, types[name], shape) for name, shape in shapes.items()}
    return NetworkDescription((layer,), tensors, tuple(SHAPES), layer.outputs, {})


def values() -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(2)
    found = {name: torch.from_numpy(rng.standard_normal(shape).astype(np.float32)) for name, shape in SHAPES.items()}
    return {**found, "context_lengths": torch.tensor([5, 2], dtype=torch.int32)}


@pytest.mark.parametrize("aliased", [True, False])
def test_a_plugin_layer_runs_its_own_enqueue(trt: Any, aliased: bool) -> None:
    device = ReferenceDevice()
    registration = PluginRegistration(trt, device.plan, lambda: device)
    plugins = EnqueuedPlugins(trt, registration, torch.device("cpu"), "8.9")
    found_by = NetworkInterpreter(network(aliased), {}, plugins=plugins.kind)
    expected_by = NetworkInterpreter(network(aliased), {})
    given, twice = values(), values()
    for step in range(2):
        found, expected = found_by.run(given), expected_by.run(twice)
        for name in ("y", "conv_state_out"):
            torch.testing.assert_close(found[name], expected[name])
        torch.testing.assert_close(given["conv_state"], twice["conv_state"])
        changed = not torch.equal(given["conv_state"], values()["conv_state"])
        assert changed is aliased and device.launches == step + 1
    # The second step finds its plugin; no kernel is asked for shapes alone.
    planned = len(device.calls)
    assert found_by.run({name: value.to("meta") for name, value in given.items()})["y"].is_meta
    assert len(device.calls) == planned


def test_an_error_of_a_plugin_names_it(trt: Any) -> None:
    device = ReferenceDevice()

    def refuse(*arguments: object, **more: object) -> None:
        raise RuntimeError("the driver refuses")

    registration = PluginRegistration(trt, device.plan, lambda: device)
    plugins = EnqueuedPlugins(trt, registration, torch.device("cpu"), "8.9")
    device.launch = refuse  # type: ignore[method-assign]
    with pytest.raises(
        EngineError, match=r"plugin causal_conv1d of layer layers.0.conv, enqueue .* the driver refuses"
    ):
        NetworkInterpreter(network(True), {}, plugins=plugins.kind).run(values())
