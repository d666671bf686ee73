"""Every operator of exported graphs, through TensorRT's real parser: the computed network equals ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.artifacts import ArtifactCache
from tests.support.effort import examples
from tests.support.tiny_models import BASE_CONFIGS
from tests.support.versions import needs_opset_24
from tests.verify.network_cases import exported

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
pytest.importorskip("torch", reason="needs the export extra (torch)")

from tests.runtime.tensorrt_network.operator_cases import CASES
from tests.runtime.tensorrt_network.small_network import Parser, computed, onnxruntime_outputs

# Relative to 1 and to the value: the same sums in another order, rounded once more in 16 bits.
TOLERANCES = {np.dtype(np.float32): 4e-6, np.dtype(np.float16): 2e-3}


@pytest.fixture(scope="module")
def parser() -> Parser:
    return Parser()


@needs_opset_24
@pytest.mark.parametrize("operator", CASES)
def test_operator_equals_onnx_runtime(operator: str, parser: Parser, tmp_path: Path) -> None:
    @settings(max_examples=examples(16), deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        case = CASES[operator](data.draw)
        model = case.model()
        expected = onnxruntime_outputs(model, case.inputs)
        found = computed(parser.network(model, tmp_path), case.inputs)
        for name, right in zip(case.outputs, expected, strict=True):
            assert found[name].dtype == right.dtype and found[name].shape == right.shape
            tolerance = TOLERANCES.get(right.dtype, 0)
            np.testing.assert_allclose(found[name], right, rtol=tolerance, atol=tolerance, err_msg=name)

    check()


@pytest.mark.slow
@pytest.mark.parametrize("family", BASE_CONFIGS)
def test_graphs_hold_no_other_operators(family: str, artifacts: ArtifactCache) -> None:
    known = {"Constant", *(name.split()[0] for name in CASES)}
    for layout in ("dense", "paged"):
        file = exported(artifacts, family, layout=layout).folder / "model.onnx"
        model = onnx.load(file, load_external_data=False)
        graphs = (model.graph.node, *(function.node for function in model.functions))
        assert {name for graph in graphs for name in operators(graph)} <= known, layout


def operators(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """The standard operators of ``nodes`` and of their subgraphs."""
    for node in nodes:
        if not node.domain:
            yield node.op_type
        for attribute in node.attribute:
            yield from operators(attribute.g.node)
