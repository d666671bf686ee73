"""Mixers become one node that computes the same, and only where nothing else needs what lies inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.checks import check_op_nodes
from hybridge.trt_plugins.functions import attach_functions
from hybridge.trt_plugins.rewrites.joined_mixers import with_joined_mixers
from hybridge.trt_plugins.rewrites.mamba2_mixer import find_mixers
from hybridge.trt_plugins.value_types import node_attributes
from tests.rewrites.mixer_graph import INNER, LIMITS, OUTPUTS, mixer_feeds, mixer_model

ort = pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels  # noqa: E402 (needs onnxruntime)
from hybridge.runtime.engines.onnxruntime.opset import lower_opset  # noqa: E402


def joined(model: onnx.ModelProto) -> onnx.ModelProto:
    result = with_joined_mixers(model)
    assert result is not None
    return result


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    lowered = ir.from_proto(model)
    lower_opset(lowered, installed_kernels())
    session = ort.InferenceSession(ir.to_proto(lowered).SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16])
def test_the_mixer_is_one_node(dtype: DType) -> None:
    before = mixer_model(dtype)
    after = joined(before)
    onnx.checker.check_model(after)
    (node,) = check_op_nodes(after)
    assert (node.op, node.name) == ("mamba2_conv_scan", "node_mamba2_conv_scan")
    (proto,) = (n for n in after.graph.node if n.domain == "trt_edgellm")
    assert node_attributes(proto) == {"activation": "silu", "dt_softplus": 1} | {
        name: pytest.approx(value) for name, value in LIMITS.items()
    }
    narrow = ["Cast"] if dtype is not DType.FLOAT32 else []
    assert [n.op_type for n in after.graph.node] == ["Split", "mamba2_conv_scan", *narrow]
    for side in ("input", "output"):
        assert getattr(after.graph, side) == getattr(before.graph, side)


@pytest.mark.parametrize(("lengths", "time"), [((1, 0, 1), 1), ((5, 65, 0, 17), 65)])
def test_it_computes_the_same(lengths: tuple[int, ...], time: int) -> None:
    model, feeds = mixer_model(), mixer_feeds(3, lengths, time)
    after = joined(model)
    attach_functions(after)
    expected = run(model, feeds)
    assert all(np.isfinite(array).all() for array in expected)
    for name, found, wanted in zip(OUTPUTS, run(after, feeds), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max(), err_msg=name)


def test_16_bits_differ_by_rounding_alone() -> None:
    """What the parts round in between, the joined operator does not."""
    model, feeds = mixer_model(DType.FLOAT16), mixer_feeds(5, (9, 4), 9)
    feeds |= {name: feeds[name].astype(np.float16) for name in ("projected", "conv_state")}
    after = joined(model)
    attach_functions(after)
    for found, wanted in zip(run(after, feeds), run(model, feeds), strict=True):
        difference = found.astype(np.float64) - wanted
        assert np.linalg.norm(difference) < 2e-3 * np.linalg.norm(wanted.astype(np.float64))


def edited(edit: Callable[[onnx.GraphProto], Any]) -> onnx.ModelProto:
    model = mixer_model()
    edit(model.graph)
    return model


def node_of(graph: onnx.GraphProto, name: str) -> onnx.NodeProto:
    return next(node for node in graph.node if node.name == name)


def read_also(value: str) -> Callable[[onnx.GraphProto], Any]:
    return lambda graph: graph.node.append(helper.make_node("Identity", [value], ["other"], name="other"))


def other_lengths(graph: onnx.GraphProto) -> None:
    graph.node.insert(0, helper.make_node("Identity", ["context_lengths"], ["lengths"], name="lengths"))
    node_of(graph, "node_causal_conv1d").input[4] = "lengths"


def unknown_shape(graph: onnx.GraphProto) -> None:
    info = next(value for value in graph.value_info if value.name == "B")
    info.type.tensor_type.ClearField("shape")


def unnamed_axis(graph: onnx.GraphProto) -> None:
    for value in graph.value_info:
        value.type.tensor_type.shape.dim[1].Clear()


def swapped(graph: onnx.GraphProto) -> None:
    split = node_of(graph, "channels")
    split.output[1], split.output[2] = split.output[2], split.output[1]


EDITS: dict[str, Callable[[onnx.GraphProto], Any]] = {
    "y is read": read_also("y"),
    "the mixed channels are read": read_also("mixed"),
    "C is read": read_also("C"),
    "y without the gate is read": read_also("y_flat"),
    "other lengths": other_lengths,
    "unknown shape": unknown_shape,
    "unknown tokens": unnamed_axis,
    "B and C change places": swapped,
    "another gate function": lambda graph: setattr(node_of(graph, "sigmoid"), "op_type", "Tanh"),
    "gate of another value": lambda graph: node_of(graph, "sigmoid").input.__setitem__(0, "y_flat"),
    "no gate": lambda graph: setattr(node_of(graph, "gating"), "op_type", "Add"),
    "another axis": lambda graph: node_of(graph, "channels").attribute[0].__setattr__("i", 1),
}


@pytest.mark.parametrize("name", EDITS)
def test_values_that_are_used_elsewhere_stay(name: str) -> None:
    assert with_joined_mixers(edited(EDITS[name])) is None


def test_a_gate_that_others_read_stays_for_them() -> None:
    after = joined(edited(read_also("silu")))
    assert [n.op_type for n in after.graph.node] == ["Split", "Sigmoid", "Mul", "mamba2_conv_scan", "Identity"]


def test_the_picture_is_found() -> None:
    (mixer,) = find_mixers(ir.from_proto(mixer_model(DType.BFLOAT16)).graph)
    assert (mixer.conv.op_type, mixer.scan.op_type) == ("causal_conv1d", "update_ssm_state")
    assert (mixer.gate.name, mixer.gated.name) == ("gate", "gated")
    assert mixer.gated.shape is not None and mixer.gated.shape[-1] == INNER
    assert [value.name for value in mixer.state_outputs] == list(OUTPUTS[1:])
