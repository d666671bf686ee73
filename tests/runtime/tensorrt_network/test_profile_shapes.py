"""Shapes at the ends of optimization profiles: an error there names the profile, its sizes and the layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from hybridge.artifact.bindings import Binding
from hybridge.artifact.dtypes import DType
from hybridge.artifact.engine_record import ProfileRecord
from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.network.description import PLUGIN, NetworkDescription, NetworkLayer, NetworkTensor

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
pytest.importorskip("torch", reason="needs the export extra (torch)")

from hybridge.runtime.engines.tensorrt_network.interpreter import NetworkInterpreter
from hybridge.runtime.engines.tensorrt_network.profile_shapes import check_profile_shapes
from tests.runtime.tensorrt_network.small_network import Parser, Small

INPUT = Binding("x", DType.FLOAT32, ("batch", "seq"))


def in_pairs(tmp_path: Path) -> NetworkInterpreter:
    """x [batch, seq] in rows of two numbers."""
    node = helper.make_node("Reshape", ["x", "two"], ["y"])
    x, two = np.zeros([2, 2], np.float32), np.array([-1, 2], np.int64)
    case = Small([node], {"x": x}, {"y": TensorProto.FLOAT}, {"two": two}, dynamic=True)
    return Parser().network(case.model(), tmp_path)


def profile(least: list[int], most: list[int]) -> ProfileRecord:
    return ProfileRecord("prefill", {"x": [least, least, most]})


def test_every_end_is_evaluated(tmp_path: Path) -> None:
    like_input = Binding("y", DType.FLOAT32, ("batch", 2))
    network = in_pairs(tmp_path)
    assert check_profile_shapes(network, [INPUT], [like_input], [profile([1, 2], [8, 2])]) == 2
    with pytest.raises(EngineError, match=r"^profile prefill at batch 8, seq 4: expected y \[8, 2\], found \[16, 2\]"):
        check_profile_shapes(network, [INPUT], [like_input], [profile([1, 2], [8, 4])])


def test_a_corner_alone_may_fail(tmp_path: Path) -> None:
    network = in_pairs(tmp_path)
    ends = profile([1, 2], [2, 3])
    with pytest.raises(EngineError, match=r"^profile prefill at batch 1, seq 3: layer node_of_y \(SHUFFLE\)"):
        check_profile_shapes(network, [INPUT], [], [ends])


def test_sizes_that_overflow_are_named(tmp_path: Path) -> None:
    """Rows times 2^24, in int32, divided by 2^24 again."""
    constants = {"most": np.array([1 << 24], np.int32), "two": np.array([2], np.int64)}
    nodes = [
        helper.make_node("Shape", ["x"], ["long"], end=1),
        helper.make_node("Cast", ["long"], ["rows"], to=TensorProto.INT32),
        helper.make_node("Mul", ["rows", "most"], ["product"]),
        helper.make_node("Div", ["product", "most"], ["again"]),
        helper.make_node("Cast", ["again"], ["size"], to=TensorProto.INT64),
        helper.make_node("Concat", ["size", "two"], ["sizes"], axis=0),
        helper.make_node("Reshape", ["x", "sizes"], ["y"]),
    ]
    case = Small(nodes, {"x": np.zeros([2, 2], np.float32)}, {"y": TensorProto.FLOAT}, constants, dynamic=True)
    network = Parser().network(case.model(), tmp_path)
    assert check_profile_shapes(network, [INPUT], [INPUT], [profile([1, 2], [127, 2])]) == 2
    with pytest.raises(EngineError, match=r"batch 128.*\(ELEMENTWISE\).*integers within torch.int32, found 2147483648"):
        check_profile_shapes(network, [INPUT], [], [profile([1, 2], [128, 2])])


def test_negative_sizes_are_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Sub", ["sizes", "three"], ["fewer"]),
        helper.make_node("Expand", ["one", "fewer"], ["y"]),
    ]
    constants = {"three": np.array([3, 0], np.int64), "one": np.ones([1, 1], np.float32)}
    case = Small(nodes, {"x": np.zeros([4, 2], np.float32)}, {"y": TensorProto.FLOAT}, constants, dynamic=True)
    network = Parser().network(case.model(), tmp_path)
    assert check_profile_shapes(network, [INPUT], [], [profile([3, 2], [8, 2])]) == 2
    with pytest.raises(EngineError, match=r"^profile prefill at batch 2, seq 2: .*found \[-1, 2\]"):
        check_profile_shapes(network, [INPUT], [], [profile([2, 2], [8, 2])])


def convolution(kernel: int) -> NetworkInterpreter:
    """One plugin, as a network that was parsed for a GPU of compute capability 8.9 describes it."""
    shapes = {"x": (-1, -1, 6), "weight": (6, 1, kernel), "bias": (6,), "conv_state": (-1, 6, kernel)}
    shapes |= {"context_lengths": (-1,), "y": (-1, -1, 6), "conv_state_out": (-1, 6, kernel)}
    tensors = {name: NetworkTensor(name, DType.FLOAT16, shape) for name, shape in shapes.items()}
    tensors["context_lengths"] = replace(tensors["context_lengths"], dtype=DType.INT32)
    names = tuple(shapes)
    attributes = {"operator": "causal_conv1d", "version": 1, "fields": {"activation": "silu"}, "aliased": False}
    layer = NetworkLayer(PLUGIN, "conv", names[:5], names[5:], {**attributes, "capabilities": ["8.9"]})
    return NetworkInterpreter(NetworkDescription((layer,), tensors, names[:5], names[5:], {}), {})


def test_shapes_without_a_kernel_are_named() -> None:
    for kernel in (4, 9):
        state = Binding("conv_state", DType.FLOAT16, ("batch", 6, kernel))
        rows = {"x": [2, 5, 6], "weight": [6, 1, kernel], "bias": [6], "conv_state": [2, 6, kernel]}
        ends = ProfileRecord("prefill", {name: [shape] * 3 for name, shape in {**rows, "context_lengths": [2]}.items()})
        inputs = [Binding("x", DType.FLOAT16, ("batch", "seq", 6)), Binding("weight", DType.FLOAT16, (6, 1, kernel))]
        inputs += [Binding("bias", DType.FLOAT16, (6,)), state, Binding("context_lengths", DType.INT32, ("batch",))]
        if kernel == 4:
            assert check_profile_shapes(convolution(kernel), inputs, [], [ends]) == 1
        else:
            with pytest.raises(EngineError, match=r"layer conv \(PLUGIN_V3\): .* kernel from 2 to 8, found"):
                check_profile_shapes(convolution(kernel), inputs, [], [ends])
