"""Plugin layers of a computed network on this machine's GPU, against the float64 reference of their operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hybridge.runtime.engines.tensorrt_network.enqueued import EnqueuedPlugins
from hybridge.runtime.engines.tensorrt_network.interpreter import NetworkInterpreter
from hybridge.trt_plugins.kernels.catalog import dense_operators
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.network.description import PLUGIN, NetworkDescription, NetworkLayer, NetworkTensor
from hybridge.trt_plugins.plugins.registration import PluginRegistration
from tests.plugins.test_enqueue_gpu import BF16, DECODE, F32, LAUNCHES, PREFILL, TOLERANCE, call_of
from tests.support.plugin_calls import PluginCall, dtype_of

pytestmark = pytest.mark.gpu


def network(call: PluginCall) -> NetworkDescription:
    """``call`` as a network of one layer, whose states are updated in place."""
    spec = call.spec
    attributes = {
        "operator": spec.name,
        "version": spec.version,
        "fields": call.attributes,
        "capabilities": [],
        "aliased": True,
    }
    inputs, outputs = (tuple(tensor.name for tensor in tensors) for tensors in (spec.inputs, spec.outputs))
    layer = NetworkLayer(PLUGIN, "layers.0.mixer", inputs, outputs, attributes)
    pairs = zip((*inputs, *outputs), (*call.inputs, *call.outputs), strict=True)
    tensors = {name: NetworkTensor(name, dtype_of(value), tuple(value.shape)) for name, value in pairs}
    return NetworkDescription((layer,), tensors, inputs, outputs, {})


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("form", [PREFILL, DECODE], ids=["prefill", "decode"])
@pytest.mark.parametrize("op", dense_operators())
def test_a_layer_has_the_values_of_its_operator(trt: Any, op: str, form: Any, dtype: torch.dtype) -> None:
    call = call_of(op, form, dtype)
    expected = call.reference()
    major, minor = KernelDevice.current().traits.capability
    plugins = EnqueuedPlugins(trt, PluginRegistration(trt), torch.device("cuda"), f"{major}.{minor}")
    interpreter = NetworkInterpreter(network(call), {}, plugins=plugins.kind)
    given = {tensor.name: value.cpu() for tensor, value in zip(call.spec.inputs, call.inputs, strict=True)}
    before = {name: value.clone() for name, value in given.items()}
    found = interpreter.run(given)
    for output, wanted in zip(call.spec.outputs, expected, strict=True):
        error = (found[output.name].double() - wanted.cpu()).norm() / wanted.norm().cpu()
        assert error <= TOLERANCE[dtype] * (LAUNCHES.get(op, 1) if dtype is not F32 else 1), output.name
        state = output.name.removesuffix("_out")
        if state in given:
            assert torch.equal(given[state], found[output.name]) and not torch.equal(given[state], before[state])
