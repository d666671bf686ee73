"""What the installed ONNX Runtime can do, found by asking it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import onnxruntime as ort
from onnx import TensorProto, helper

MICROSOFT = "com.microsoft"
ARTIFACT_OPSET = 24


@dataclass(frozen=True)
class Kernels:
    """Abilities of one ONNX Runtime build on the CPU.

    opset: highest ONNX opset of ours that it loads. recurrent_ops: it has LinearAttention and
    CausalConvWithState (1.31 has, 1.23 has not).
    """

    opset: int
    recurrent_ops: bool


@lru_cache(maxsize=1)
def installed_kernels() -> Kernels:
    """The abilities of the installed ONNX Runtime."""
    opset = ARTIFACT_OPSET if _loads(helper.make_node("Identity", ["x"], ["y"]), [1], ARTIFACT_OPSET) else 23
    conv = helper.make_node("CausalConvWithState", ["x", "x"], ["y", "z"], domain=MICROSOFT)
    scan = helper.make_node(
        "LinearAttention",
        ["x", "x", "x", "", "x"],
        ["y", "z"],
        domain=MICROSOFT,
        q_num_heads=1,
        kv_num_heads=1,
        update_rule="gated",
    )
    return Kernels(opset, all(_loads(node, [1, 1, 1], 21) for node in (conv, scan)))


def quiet_options() -> ort.SessionOptions:
    """Session options that log nothing below errors."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return options


def _loads(node: object, shape: Sequence[int], opset: int) -> bool:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph([node], "probe", value[:1], value[1:])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    try:
        ort.InferenceSession(model.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"])
    except Exception:  # ONNX Runtime raises classes of its own for each reason; any of them means no
        return False
    return True
