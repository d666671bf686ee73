"""Random calls of ``routed_experts``, their meaning as a float64 loop, and models of one node."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.functions import attach_functions


@dataclass(frozen=True)
class ExpertCase:
    """Inputs as float64 and int32 arrays; x is [batch, time, hidden]."""

    x: np.ndarray
    expert_ids: np.ndarray
    expert_weights: np.ndarray
    up_weight: np.ndarray
    down_weight: np.ndarray
    up_bias: np.ndarray | None = None
    down_bias: np.ndarray | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        """Those that the case has."""
        return {name: array for name, array in vars(self).items() if array is not None}


def expert_case(
    batch: int = 2,
    time: int = 7,
    experts: int = 5,
    top_k: int = 2,
    hidden: int = 9,
    intermediate: int = 6,
    gated: int = 1,
    favourite: bool = False,
    biased: bool = False,
    seed: int = 0,
) -> ExpertCase:
    """favourite: every token's first choice is expert 0."""
    rng = np.random.default_rng(seed)
    liking = rng.random((batch, time, experts))
    if favourite:
        liking[..., 0] = 2.0
    rows = intermediate * (2 if gated else 1)
    case = ExpertCase(
        x=rng.standard_normal((batch, time, hidden)),
        expert_ids=np.argsort(-liking, -1)[..., :top_k].astype(np.int32),
        expert_weights=rng.uniform(0.1, 1.0, (batch, time, top_k)),
        up_weight=rng.standard_normal((experts, rows, hidden)) * hidden**-0.5,
        down_weight=rng.standard_normal((experts, hidden, intermediate)) * intermediate**-0.5,
    )
    if not biased:
        return case
    up_bias, down_bias = rng.standard_normal((experts, rows)), rng.standard_normal((experts, hidden))
    return replace(case, up_bias=up_bias, down_bias=down_bias)


def activation(name: str, x: np.ndarray) -> np.ndarray:
    """The activation as its definition has it."""
    if name == "silu":
        return x / (1.0 + np.exp(-x))
    if name == "gelu":
        return 0.5 * x * (1.0 + np.vectorize(math.erf)(x / np.sqrt(2.0)))
    if name == "gelu_pytorch_tanh":
        return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
    return np.maximum(x, 0.0) ** (2 if name == "relu2" else 1)


# gpt-oss's constants, with a limit that random numbers pass.
CLAMPED = {"alpha": 1.702, "limit": 0.75, "offset": 1.0}


def expert_loop(case: ExpertCase, name: str, gated: int, clamped: bool = False) -> np.ndarray:
    """One token and one expert at a time; clamped: gated silu with the constants of CLAMPED."""
    y = np.zeros_like(case.x)
    for place in np.ndindex(case.expert_ids.shape):
        expert, x = case.expert_ids[place], case.x[place[:2]]
        up = case.up_weight[expert] @ x
        if case.up_bias is not None:
            up = up + case.up_bias[expert]
        if clamped:
            gate, rest = np.split(up, 2)
            gate, rest = np.minimum(gate, CLAMPED["limit"]), np.clip(rest, -CLAMPED["limit"], CLAMPED["limit"])
            inner = gate / (1.0 + np.exp(-CLAMPED["alpha"] * gate)) * (rest + CLAMPED["offset"])
        elif gated:
            half = len(up) // 2
            inner = activation(name, up[:half]) * up[half:]
        else:
            inner = activation(name, up)
        result = case.down_weight[expert] @ inner
        y[place[:2]] += case.expert_weights[place] * (
            result if case.down_bias is None else result + case.down_bias[expert]
        )
    return y


def expert_model(
    data: str,
    name: str,
    gated: int,
    has_time: bool = True,
    version: int = 1,
    biased: bool = False,
    **attributes: float,
) -> onnx.ModelProto:
    """One node whose inputs are all the model's, every axis symbolic; ``version`` of the domain."""
    dtype = DType(data).onnx
    tokens = ["batch", "time"] if has_time else ["batch"]
    shapes: dict[str, tuple[int, list[str]]] = {
        "x": (dtype, [*tokens, "hidden"]),
        "expert_ids": (TensorProto.INT32, [*tokens, "top_k"]),
        "expert_weights": (TensorProto.FLOAT, [*tokens, "top_k"]),
        "up_weight": (dtype, ["experts", "up_size", "hidden"]),
        "down_weight": (dtype, ["experts", "hidden", "intermediate"]),
    }
    if biased:
        shapes |= {"up_bias": (dtype, ["experts", "up_size"]), "down_bias": (dtype, ["experts", "hidden"])}
    attributes |= {"gated": gated}
    node = helper.make_node(
        "routed_experts", list(shapes), ["y"], name="node", domain="trt_edgellm", activation=name, **attributes
    )
    inputs = [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in shapes.items()]
    output = helper.make_tensor_value_info("y", dtype, [*tokens, "hidden"])
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("trt_edgellm", version)]
    model = helper.make_model(helper.make_graph([node], "g", inputs, [output]), opset_imports=opsets, ir_version=10)
    attach_functions(model)
    return model
