"""TensorRT-RTX builds engines from the ONNX functions, without a GPU and without plugins."""

from __future__ import annotations

import itertools
from typing import Any

import onnx
import pytest

from hybridge.trt_plugins.build.model import fix_axes
from tests.ops.cases import conv_case, delta_case, scan_case, ssm_case
from tests.ops.expert_cases import expert_model
from tests.ops.node_model import node_model, types_of
from tests.support.effort import sample

trt = pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")

SSM_SIZES = {"heads": 8, "groups": 2, "head_dim": 16, "state_size": 32}
CONV_SIZES = {"conv_dim": 24, "kernel": 4}


def pairs(first: tuple[Any, Any], second: tuple[Any, Any]) -> list[Any]:
    """All four pairs; the first of each and the second of each on push."""
    return sample(itertools.product(first, second), on_push=tuple(zip(first, second, strict=True)))


def engine_bytes(model: onnx.ModelProto) -> int:
    """Size of an engine with batch 1..4 and length 1..512; parser errors fail the test."""
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    parsed = parser.parse(model.SerializeToString())
    assert parsed, [parser.get_error(i).desc() for i in range(parser.num_errors)]
    profile = builder.create_optimization_profile()
    symbols = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        names = [dim.dim_param for dim in symbols[tensor.name]]
        if any(names):
            ranges = {"batch": (1, 2, 4), "time": (1, 64, 512)}
            sizes = [ranges.get(n, (s,) * 3) for n, s in zip(names, tensor.shape, strict=True)]
            profile.set_shape(tensor.name, *zip(*sizes, strict=True))
    config = builder.create_builder_config()
    config.add_optimization_profile(profile)
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    plan = builder.build_serialized_network(network, config)
    return 0 if plan is None else plan.nbytes


# On push each value of each parameter once, in the costliest of their pairs.
@pytest.mark.parametrize(("data", "has_time"), pairs(("float16", "bfloat16"), (True, False)))
def test_ssm_engine_builds(data: str, has_time: bool) -> None:
    types = types_of(ssm_case((1,), 1), data)
    attributes = {"time_step_min": 0.001, "time_step_max": 0.1}
    assert engine_bytes(node_model("update_ssm_state", types, SSM_SIZES, attributes, has_time)) > 0


@pytest.mark.parametrize(("data", "bias"), pairs(("float16", "bfloat16"), (True, False)))
def test_conv_engine_builds(data: str, bias: bool) -> None:
    types = types_of(conv_case((1,), 1, bias=bias), data)
    assert engine_bytes(node_model("causal_conv1d", types, CONV_SIZES, {"activation": "silu"})) > 0


# On push the form with a loop over chunks.
@pytest.mark.parametrize("has_time", sample((True, False), on_push=(True,)))
def test_selective_scan_engine_builds(has_time: bool) -> None:
    types, sizes = types_of(scan_case((1,), 1), "bfloat16"), {"channels": 24, "groups": 1, "state_size": 16}
    assert engine_bytes(node_model("selective_scan", types, sizes, {}, has_time)) > 0


DELTA_SIZES = {"key_heads": 2, "value_heads": 4, "key_size": 32, "value_size": 16}


@pytest.mark.parametrize(("decay", "has_time"), pairs(("key_channel", "head"), (True, False)))
def test_gated_delta_rule_engine_builds(decay: str, has_time: bool) -> None:
    decay_size = 1 if decay == "head" else DELTA_SIZES["key_size"]
    types = types_of(delta_case((1,), 1), "bfloat16")
    sizes = {**DELTA_SIZES, "decay_size": decay_size}
    assert engine_bytes(node_model("gated_delta_rule", types, sizes, {"decay": decay}, has_time)) > 0


@pytest.mark.parametrize(("data", "has_time"), pairs(("float16", "bfloat16"), (True, False)))
def test_routed_experts_engine_builds(data: str, has_time: bool) -> None:
    activation, gated = ("silu", 1) if data == "float16" else ("relu2", 0)
    model = expert_model(data, activation, gated, has_time)
    sizes = {"top_k": 3, "experts": 7, "hidden": 24, "intermediate": 10, "up_size": 20 if gated else 10}
    fix_axes(model, sizes)
    assert engine_bytes(model) > 0
