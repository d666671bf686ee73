"""Guarantees of one run: memory updated in place, shapes, and errors that name the layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from hybridge.artifact.errors import EngineError

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
pytest.importorskip("torch", reason="needs the export extra (torch)")

import torch

from hybridge.runtime.engines.tensorrt_network.aliases import find_hazards
from hybridge.runtime.engines.tensorrt_network.interpreter import NetworkInterpreter
from tests.runtime.tensorrt_network.small_network import Parser, Small

SHAPE = [2, 3, 6, 8]
CACHE = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
UPDATE = np.random.default_rng(1).normal(size=[2, 3, 1, 8]).astype(np.float32)


@pytest.fixture(scope="module")
def parser() -> Parser:
    return Parser()


def cached(first: bool) -> Small:
    """``old``: the cache with its axes exchanged, before the update. ``first``: the update depends on it."""
    read = helper.make_node("Transpose", ["cache"], ["old"], perm=[0, 2, 1, 3])
    one = helper.make_node("Slice", ["old", "zero", "one", "axis"], ["part"])
    back = helper.make_node("Transpose", ["part"], ["turned"], perm=[0, 2, 1, 3])
    add = helper.make_node("Add", ["update", "turned"], ["new"])
    source = "new" if first else "update"
    write = helper.make_node("TensorScatter", ["cache", source, "start"], ["present"], axis=2, mode="linear")
    after = helper.make_node("Transpose", ["present"], ["later"], perm=[0, 2, 1, 3])
    inputs = {"cache": CACHE, "update": UPDATE, "start": np.array([5, 0], np.int64)}
    constants = {"zero": np.array([0]), "one": np.array([1]), "axis": np.array([1])}
    nodes = [read, *((one, back, add) if first else ()), write, after]
    return Small(
        nodes, inputs, dict.fromkeys(("old", "present", "later"), TensorProto.FLOAT), constants if first else {}
    )


def tensors(inputs: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in inputs.items()}


def test_a_cache_is_updated_in_its_memory_and_what_was_read_before_stays(parser: Parser, tmp_path: Path) -> None:
    case = cached(first=True)
    network = parser.network(case.model(), tmp_path)
    assert not find_hazards(network.description)
    assert network.aliases.shared == {"present": "cache"}
    inputs = tensors(case.inputs)
    found = network.run(inputs)
    expected = CACHE.copy()
    for row, start in enumerate((5, 0)):
        expected[row, :, start] = (UPDATE + CACHE[:, :, :1])[row, :, 0]
    assert found["present"].data_ptr() == inputs["cache"].data_ptr()
    np.testing.assert_array_equal(inputs["cache"].numpy(), expected)
    np.testing.assert_array_equal(found["old"].numpy(), CACHE.transpose(0, 2, 1, 3))
    np.testing.assert_array_equal(found["later"].numpy(), expected.transpose(0, 2, 1, 3))


def test_a_read_without_an_order_to_the_update_is_a_hazard(parser: Parser, tmp_path: Path) -> None:
    (hazard,) = find_hazards(parser.description(cached(first=False).model(), tmp_path / "constants"))
    assert hazard.tensor == "cache" and "KV_CACHE_UPDATE" in hazard.writer and "SHUFFLE" in hazard.reader


def test_positions_outside_of_the_cache_are_refused(parser: Parser, tmp_path: Path) -> None:
    case = cached(first=True)
    network = parser.network(case.model(), tmp_path)
    with pytest.raises(EngineError, match="expected 1 positions within 6, found them from 6 on"):
        network.run(tensors({**case.inputs, "start": np.array([6, 0], np.int64)}))


@pytest.mark.parametrize("operator", ["ScatterND", "ScatterElements"])
def test_a_position_with_two_values_is_a_hazard(operator: str, parser: Parser, tmp_path: Path) -> None:
    x, by_tuple = np.zeros([3, 2], np.float32), operator == "ScatterND"
    indices = np.array([[1], [-2], [0]] if by_tuple else [[1, 0], [1, 2], [0, 0]], np.int64)
    updates = np.array([[1, np.nan], [1, np.nan], [2, np.nan]], np.float32)
    node = helper.make_node(operator, ["x", "i", "u"], ["y"], **({} if by_tuple else {"axis": 0}))
    inputs = {"x": x, "i": indices, "u": updates}
    network = parser.network(Small([node], inputs, {"y": TensorProto.FLOAT}).model(), tmp_path)
    found = network.run(tensors(inputs))["y"].numpy()
    expected = [[2, np.nan], [1, np.nan], [0, 0]] if by_tuple else [[2, np.nan], [1, 0], [0, np.nan]]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))
    updates[1, 0] = 3
    with pytest.raises(EngineError, match=r"\(SCATTER\).*expected equal updates of a repeated position"):
        network.run(tensors(inputs))


def test_an_unknown_kind_is_named_with_its_layer(parser: Parser, tmp_path: Path) -> None:
    x = np.zeros([1, 1, 4, 4], np.float32)
    pool = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2])
    with pytest.raises(EngineError, match=r"^layer node_of_y \(POOLING\): expected one of the kinds ACTIVATION"):
        parser.network(Small([pool], {"x": x}, {"y": TensorProto.FLOAT}).model(), tmp_path)


def test_another_shape_than_tensorrt_inferred_is_named(parser: Parser, tmp_path: Path) -> None:
    x = np.zeros([2, 3], np.float32)
    case = Small([helper.make_node("Neg", ["x"], ["y"])], {"x": x}, {"y": TensorProto.FLOAT})
    network = parser.network(case.model(), tmp_path)
    with pytest.raises(EngineError, match=r"^input x: expected x of shape \[2, 3\], found \[3, 2\]"):
        network.run(tensors({"x": x.T}))
    found = network.description
    wrong = replace(found, tensors={**found.tensors, "y": replace(found.tensors["y"], shape=(3, 2))})
    with pytest.raises(EngineError, match=r"^layer node_of_y \(UNARY\): expected y of shape \[3, 2\], found \[2, 3\]"):
        NetworkInterpreter(wrong, {}).run(tensors({"x": x}))


def test_sixteen_bits_are_rounded_between_layers_unless_widened(parser: Parser, tmp_path: Path) -> None:
    x = np.array([[1.0]], np.float16)
    tiny = {"tiny": np.array([[2.0**-12]], np.float16), "one": np.array([[1.0]], np.float16)}
    nodes = [helper.make_node("Add", ["x", "tiny"], ["sum"]), helper.make_node("Sub", ["sum", "one"], ["y"])]
    model = Small(nodes, {"x": x}, {"y": TensorProto.FLOAT16}, tiny).model()
    assert parser.network(model, tmp_path).run(tensors({"x": x}))["y"].item() == 0
    wide = parser.network(model, tmp_path, widen=True)
    assert wide.run(tensors({"x": x.astype(np.float32)}))["y"].item() == 2.0**-12


def test_weights_of_every_type_are_read(parser: Parser, tmp_path: Path) -> None:
    numbers = [-1.5, 0.0, 0.25, 6.0]
    for kind in (TensorProto.BFLOAT16, TensorProto.FLOAT16, TensorProto.FLOAT):
        weights = helper.make_tensor("w", kind, [2, 2], numbers)
        node = helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)
        model = Small([node], {}, {"y": TensorProto.FLOAT}, {"w": weights}).model()
        assert parser.network(model, tmp_path).run({})["y"].reshape(-1).tolist() == numbers


def test_runs_of_other_shapes_share_nothing(parser: Parser, tmp_path: Path) -> None:
    x = np.zeros([3, 4], np.float32)
    flat = helper.make_node("Reshape", ["x", "all"], ["y"], allowzero=1)
    constants = {"all": np.array([-1], np.int64)}
    case = Small([flat], {"x": x}, {"y": TensorProto.FLOAT}, constants, dynamic=True)
    network = parser.network(case.model(), tmp_path)
    for shape in ([3, 4], [2, 5], [1, 1]):
        assert network.run({"x": torch.zeros(shape)})["y"].shape == (shape[0] * shape[1],)
