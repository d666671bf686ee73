"""Laying a traced layer out once per layer gives the graph that tracing every layer gives."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir
import pytest
from onnx_ir.passes.common import CommonSubexpressionEliminationPass

from hybridge.artifact.dtypes import DType
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.registry import decoder_config
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.trace.interface import graph_bindings
from hybridge.exporter.trace.tracing import trace_decoder
from hybridge.exporter.trace.unroll import distinct_layers, unroll
from tests.support.tiny_models import BASE_CONFIGS

# Two kinds of attention, full before sliding: the second kind uses what the first one computed for all.
QWEN3 = {
    "num_hidden_layers": 4,
    "use_sliding_window": True,
    "sliding_window": 5,
    "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
}


@pytest.mark.parametrize(
    ("model_type", "overrides"),
    [
        pytest.param("qwen3", QWEN3, marks=pytest.mark.slow),
        ("nemotron_h", {}),
        pytest.param("zamba2", {}, marks=pytest.mark.slow),
        pytest.param("zaya", {}, marks=pytest.mark.slow),
    ],
)
def test_the_unrolled_graph_has_the_nodes_of_the_fully_traced_one(model_type: str, overrides: dict) -> None:
    raw = {"model_type": model_type, **BASE_CONFIGS[model_type], **overrides}
    config = decoder_config(raw)
    assert len(distinct_layers(config).layers) < len(config.layers)
    unrolled, traced = unrolled_model(config), traced_model(config)
    assert operators(unrolled) == operators(traced)
    assert set(unrolled.graph.initializers) == set(traced.graph.initializers)
    assert [v.name for v in unrolled.graph.inputs] == [v.name for v in traced.graph.inputs]
    assert [v.name for v in unrolled.graph.outputs] == [v.name for v in traced.graph.outputs]
    assert uses_of_initializers(unrolled) == uses_of_initializers(traced)


def operators(model: ir.Model) -> Counter[str]:
    """Operators once equal subexpressions are one: full tracing repeats in each layer what the layers share."""
    CommonSubexpressionEliminationPass()(model)
    return Counter(node.op_type for node in model.graph if node.op_type != "Constant")


def traced_model(config: DecoderConfig) -> ir.Model:
    bindings = graph_bindings(config, ExportOptions(), DType.FLOAT32)
    return trace_decoder(config, bindings, DType.FLOAT32, ExportOptions())


def unrolled_model(config: DecoderConfig) -> ir.Model:
    distinct = distinct_layers(config)
    bindings = graph_bindings(config, ExportOptions(), DType.FLOAT32)
    reduced = graph_bindings(distinct, ExportOptions(), DType.FLOAT32)
    return unroll(traced_model(distinct), config, reduced, bindings)


def uses_of_initializers(model: ir.Model) -> dict[str, list[str]]:
    return {name: sorted(node.op_type for node, _ in value.uses()) for name, value in model.graph.initializers.items()}
