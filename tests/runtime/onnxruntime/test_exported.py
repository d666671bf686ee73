"""What the exporter writes is recognised, so that no family silently runs in the slow form."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from hybridge.artifact.layer_types import GATED_DELTA_NET
from hybridge.runtime.engines.onnxruntime.graph_form import GraphForm
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
from hybridge.runtime.engines.onnxruntime.model_file import read_model
from hybridge.runtime.engines.onnxruntime.rewrite import rewrite
from tests.support.artifacts import ArtifactCache
from tests.support.effort import EFFORT
from tests.support.export_cases import ExportCase, case_params

# On push the two that differ most; test_passes and test_engine have all of one model.
FORMS = tuple(GraphForm) if EFFORT != "push" else (GraphForm.ONE_TOKEN, GraphForm.PADDED)


@pytest.mark.parametrize("case", case_params())
def test_every_exported_layer_gets_its_fast_form_in_place(case: ExportCase, artifacts: ArtifactCache) -> None:
    exported = case.get(artifacts)
    config = exported.config
    if GATED_DELTA_NET in config.layer_types and not installed_kernels().recurrent_ops:
        pytest.skip("needs an ONNX Runtime with LinearAttention")
    for form in FORMS:
        graph = rewrite(read_model(exported.folder), config, form, installed_kernels())
        nodes = [node.op_type for node in graph.model.graph]
        assert nodes.count("GroupQueryAttention") + nodes.count("CachedAttention") == len(config.kv_layers)
        assert "TensorScatter" not in nodes and not graph.model.functions
        assert graph.in_place == {state.name for state in config.bindings.states}
        streamed = [node for node in graph.model.graph if node.op_type == "Transpose" and _is_weight(node)]
        assert not streamed


def _is_weight(node: ir.Node) -> bool:
    value = node.inputs[0]
    return value is not None and value.is_initializer()
