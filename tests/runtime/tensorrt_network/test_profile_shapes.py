"""Shapes at the ends of optimization profiles: an error there names the profile, its sizes and the layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from hybridge.artifact.bindings import Binding
from hybridge.artifact.dtypes import DType
from hybridge.artifact.engine_record import ProfileRecord
from hybridge.artifact.errors import EngineError
from tests.support.artifacts import ArtifactCache
from tests.support.versions import needs_opset_24

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
pytest.importorskip("torch", reason="needs the export extra (torch)")

from hybridge.runtime.engines.tensorrt_network.interpreter import NetworkInterpreter
from hybridge.runtime.engines.tensorrt_network.parsed import parse_artifact
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
    assert check_profile_shapes(network, [INPUT], [], [ends], corners=False) == 2
    with pytest.raises(EngineError, match=r"^profile prefill at batch 1, seq 3: layer node_of_y \(SHUFFLE\)"):
        check_profile_shapes(network, [INPUT], [], [ends])


@needs_opset_24
@pytest.mark.slow
@pytest.mark.parametrize(("layout", "plugins"), [("dense", "auto"), ("dense", "off"), ("paged", "off")])
def test_artifacts_have_their_shapes_at_every_corner(layout: str, plugins: str, artifacts: ArtifactCache) -> None:
    exported = artifacts.get("nemotron_h", "float32", layout=layout)
    found = parse_artifact(exported.folder, plugins=plugins)
    bindings = found.plan.config.bindings
    assert check_profile_shapes(found.network, bindings.inputs, bindings.outputs, found.plan.profiles) >= 6
