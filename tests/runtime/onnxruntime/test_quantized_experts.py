"""QMoE in place of ``routed_experts`` over quantised matrices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
from tests.ops.expert_cases import ExpertCase, expert_case, expert_loop
from tests.ops.oracle import relative_error
from tests.runtime.onnxruntime.quantized_graphs import Form, QuantizedGraph

EXPERTS, HIDDEN, INTERMEDIATE = 4, 64, 32
FORMS = {
    "int4": Form(DType.INT4, 32),
    "int4 with zeros": Form(DType.INT4, 16, zeros=True),
    "int8 by row": Form(DType.INT8, None),
    "int8 with zeros": Form(DType.INT8, 32, zeros=True),
    "nvfp4": Form(DType.FLOAT4E2M1, 16, scales=DType.FLOAT8E4M3FN, is_scaled_twice=True),
}
NEEDS_QMOE = pytest.mark.skipif(not installed_kernels().quantized_experts, reason="needs an ONNX Runtime with QMoE")


def graph(folder: Path, form: Form, activation: str, gated: int, tokens: int) -> tuple[QuantizedGraph, ExpertCase]:
    """One node over quantised experts, with gate and up as separate parts, and the case with its float64 values."""
    made = QuantizedGraph(folder)
    up, meant_up = made.experts("up", form, (EXPERTS, INTERMEDIATE * (1 + gated), HIDDEN), 1 + gated)
    down, meant_down = made.experts("down", form, (EXPERTS, HIDDEN, INTERMEDIATE), 1)
    case = expert_case(1, tokens, EXPERTS, 2, HIDDEN, INTERMEDIATE, gated)
    case = replace(case, up_weight=meant_up, down_weight=meant_down)
    inputs = [
        made.input("x", ir.DataType.FLOAT, "batch", "seq", HIDDEN),
        made.input("expert_ids", ir.DataType.INT32, "batch", "seq", 2),
        made.input("expert_weights", ir.DataType.FLOAT, "batch", "seq", 2),
    ]
    attributes = {"activation": activation, "gated": gated}
    node = ir.node("routed_experts", [*inputs, up, down], attributes, domain="trt_edgellm")
    node.outputs[0].shape = inputs[0].shape
    made.graph.append(node)
    made.output("y", node.outputs[0])
    return made, case


def feeds(case: ExpertCase) -> dict[str, np.ndarray]:
    weights = case.expert_weights.astype(np.float32)
    return {"x": case.x.astype(np.float32), "expert_ids": case.expert_ids, "expert_weights": weights}


@NEEDS_QMOE
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("activation", "gated", "tokens"), [("silu", 1, 7), ("relu", 0, 1)])
def test_experts_are_read_as_packed_numbers(
    name: str, activation: str, gated: int, tokens: int, tmp_path: Path
) -> None:
    made, case = graph(tmp_path, FORMS[name], activation, gated, tokens)
    session, store, types = made.session()
    assert types.count("QMoE") == 1 and "routed_experts" not in types
    y = session.run(None, feeds(case))[0]
    # Inputs of both products are rounded to 8 bits.
    assert relative_error(y, expert_loop(case, activation, gated)) < 0.03
    assert store.copied_bytes < 2 * (case.up_weight.size + case.down_weight.size)


@NEEDS_QMOE
def test_exact_products_of_experts(tmp_path: Path) -> None:
    made, case = graph(tmp_path, FORMS["int4 with zeros"], "silu", 1, 5)
    (y,) = made.run(feeds(case), exact=True)
    assert relative_error(y, expert_loop(case, "silu", 1)) < 2e-6


def test_experts_that_no_kernel_reads_are_dequantised(tmp_path: Path) -> None:
    made, case = graph(tmp_path, Form(DType.FLOAT8E4M3FN, None), "silu", 1, 3)
    session, store, types = made.session()
    assert "QMoE" not in types
    y = session.run(None, feeds(case))[0]
    assert relative_error(y, expert_loop(case, "silu", 1)) < 2e-6
    assert store.copied_bytes == 4 * (case.up_weight.size + case.down_weight.size)
