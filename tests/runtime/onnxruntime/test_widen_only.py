"""The graph that runs in its own form still reads its matrices where they are stored."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
from hybridge.runtime.engines.onnxruntime.rewrite import widen_only


def test_a_transposed_matrix_is_read_as_it_is_stored() -> None:
    """A Transpose would pull every matrix into the model, and a model holds at most 2 GB."""
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    graph = helper.make_graph(
        [
            helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "wt"], ["y"]),
        ],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(weight, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    model = widen_only(ir.from_proto(proto), installed_kernels())
    assert [node.op_type for node in model.graph] == ["FusedMatMul"]
    assert [node.op_type for node, _ in model.graph.initializers["w"].uses()] == ["FusedMatMul"]
