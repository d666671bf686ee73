"""The operator FusedLinear of our CPU library against float64, and the nodes of a graph that it replaces."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library
from hybridge.runtime.engines.onnxruntime.linear_form import ACTIVATIONS, TYPES
from tests.runtime.onnxruntime.own_operator import EACH_SET, run_operator
from tests.runtime.onnxruntime.quantized_graphs import Form, QuantizedGraph
from tests.support.activation_sweep import EXACT, LIMIT, X, worst_error

pytestmark = pytest.mark.skipif(cpu_library().path is None, reason=f"no library: {cpu_library().reason}")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
EPSILON = 1e-5
FORM = {"type": TYPES[DType.BFLOAT16], "scale_type": TYPES[DType.FLOAT32], "group": 0, "block": 0, "exact": 1}


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight


def run(
    x: np.ndarray,
    weights: list[np.ndarray],
    norm: np.ndarray | None = None,
    added: np.ndarray | None = None,
    activation: str | None = None,
    instructions: int = 0,
) -> list[np.ndarray]:
    """The operator's outputs for bfloat16 weights."""
    inputs: dict[str, np.ndarray | None] = {"x": x, "norm": norm, "added": added}
    for index, weight in enumerate(weights):
        stored = np.ascontiguousarray(weight.astype(BFLOAT16)).view(np.uint8)
        inputs |= {f"w{index}": stored, f"scales{index}": None, f"zeros{index}": None}
    outputs = weights[:1] if activation else weights
    rows = {f"rows_{index}": len(weights[index]) if index < len(weights) else 0 for index in range(4)}
    found = run_operator(
        "FusedLinear",
        inputs,
        {f"y{index}": (*x.shape[:-1], len(weight)) for index, weight in enumerate(outputs)},
        threads=2,
        activation=ACTIVATIONS[activation] if activation else -1,
        epsilon=EPSILON,
        instructions=instructions,
        **FORM,
        **rows,
    )
    return list(found.values())


def given(*shape: int) -> np.ndarray:
    """Random bfloat16 numbers in float32."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(BFLOAT16).astype(np.float32)


@EACH_SET
@pytest.mark.parametrize("count", [1, 3, 37])
def test_products_of_one_normed_input(count: int, instructions: int) -> None:
    x, norm, weights = given(1, count, 72), given(72), [given(35, 72), given(1, 72), given(48, 72), given(16, 72)]
    wide = normed(x.astype(np.float64), norm)
    for used in (weights[:1], weights[1:3], weights):
        for found, weight in zip(run(x, used, norm, instructions=instructions), used, strict=True):
            np.testing.assert_allclose(found, wide @ weight.T, rtol=1e-5, atol=2e-5)


@EACH_SET
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("count", [1, 21])
def test_gates(count: int, activation: str, instructions: int) -> None:
    x, weights = given(count, 40), [given(19, 40), given(19, 40) * 0.5]
    x[0] *= 0.0
    (found,) = run(x, weights, activation=activation, instructions=instructions)
    gate, up = (x.astype(np.float64) @ weight.T for weight in weights)
    expected = EXACT[activation](gate) * up
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())


@EACH_SET
def test_gates_of_a_task_that_are_computed_in_parts(instructions: int) -> None:
    x, weights = given(1100, 24), [given(2083, 24), given(2083, 24) * 0.5]
    (found,) = run(x, weights, activation="relu", instructions=instructions)
    gate, up = (x.astype(np.float64) @ weight.T for weight in weights)
    expected = np.maximum(gate, 0.0) * up
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6 * np.abs(expected).max())


@EACH_SET
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_tails_of_activations(activation: str, instructions: int) -> None:
    """Of x and 1, the gate is x and the other product 1."""
    x = np.stack([X, np.ones_like(X)], axis=1).astype(np.float32)
    (found,) = run(
        x, [np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])], activation=activation, instructions=instructions
    )
    assert worst_error(found[:, 0], activation) < LIMIT


@pytest.mark.parametrize("count", [1, 20])
def test_a_sum(count: int) -> None:
    x, weight, added = given(2, count, 64), given(33, 64), given(2, count, 33)
    (found,) = run(x, [weight], added=added)
    np.testing.assert_allclose(found, x.astype(np.float64) @ weight.T + added, rtol=1e-5, atol=1e-5)


def test_inputs_whose_sizes_disagree_are_refused() -> None:
    x, weight = given(2, 64), given(33, 64)
    for norm, added, weights, activation in (
        (given(63), None, [weight], None),
        (None, given(1, 33), [weight], None),
        (None, given(2, 33), [weight, weight], None),
        (None, None, [weight, given(32, 64)], "silu"),
        (None, None, [given(33, 63)], None),
    ):
        with pytest.raises(Exception, match="FusedLinear: expected inputs whose sizes agree"):
            run(x, weights, norm, added, activation)


COLUMNS, SIZE = 64, 1024  # as many numbers in a matrix as Linear takes


def layer(folder: Path, form: Form | DType, activation: str, spoiled: str = "") -> tuple[QuantizedGraph, np.ndarray]:
    """x + down(activation(gate(n)) * up(n)) with n = norm(x), and its values for x of ones after the first half.

    spoiled: a value that something else reads, too.
    """
    made = QuantizedGraph(folder)
    x = made.input("x", ir.DataType.FLOAT, 1, "seq", COLUMNS)
    weight = ir.tensor(np.linspace(0.5, 2, COLUMNS, dtype=np.float32), name="norm")
    norm = ir.Value(name="norm", type=ir.TensorType(weight.dtype), shape=ir.Shape([COLUMNS]), const_value=weight)
    made.graph.register_initializer(norm)
    n = sized(made.op("RMSNormalization", x, norm, axis=-1), COLUMNS)
    meant: dict[str, np.ndarray] = {}

    def product(name: str, source: ir.Value, rows: int, columns: int) -> ir.Value:
        if isinstance(form, DType):
            meant[name] = given(rows, columns) * 0.1
            matrix = made.stored(name, meant[name].astype(form.numpy), form)
            meant[name] = meant[name].astype(form.numpy).astype(np.float64)
            matrix.type = ir.TensorType(ir.DataType.FLOAT)
        else:
            matrix, meant[name] = made.matrix(name, form, rows, columns)
        return sized(made.op("MatMul", source, made.op("Transpose", matrix, perm=[1, 0])), rows)

    gate, up = product("gate", n, SIZE, COLUMNS), product("up", n, SIZE, COLUMNS)
    if activation == "silu":
        a = made.op("Mul", gate, made.op("Sigmoid", gate))
    else:
        node = ir.node("Gelu", [gate], {"approximate": "tanh" if activation == "gelu_pytorch_tanh" else "none"})
        made.graph.append(node)
        a = node.outputs[0]
    down = product("down", made.op("Mul", up, a), COLUMNS, SIZE)
    made.output("y", sized(made.op("Add", down, x), COLUMNS))
    for name, value in {"norm": n, "gate": gate, "down": down}.items():
        if name == spoiled:
            made.output("other", made.op("Neg", value))
    one = np.where(np.arange(COLUMNS) < COLUMNS // 2, 0.25, 1.0)
    inner = normed(one, np.linspace(0.5, 2, COLUMNS, dtype=np.float32))
    hidden = EXACT[activation](meant["gate"] @ inner) * (meant["up"] @ inner)
    return made, one + meant["down"] @ hidden


def sized(value: ir.Value, columns: int) -> ir.Value:
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([1, "seq", columns])
    return value


@pytest.mark.parametrize("form", [DType.BFLOAT16, Form(DType.INT4, 32), Form(DType.FLOAT8E4M3FN, None)], ids=str)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_pytorch_tanh"])
def test_a_layer_has_two_nodes(form: Form | DType, activation: str, tmp_path: Path) -> None:
    made, expected = layer(tmp_path, form, activation)
    session, store, types = made.session(exact=True, linear=True)
    assert types == ["FusedLinear", "FusedLinear"]
    x = np.tile(np.where(np.arange(COLUMNS) < COLUMNS // 2, 0.25, 1.0).astype(np.float32), (1, 3, 1))
    (y,) = session.run(None, {"x": x})
    del store
    assert np.linalg.norm(y - expected) / np.linalg.norm(np.broadcast_to(expected, y.shape)) < 2e-6


@pytest.mark.parametrize(
    ("spoiled", "types"),
    [
        ("norm", ["RMSNormalization", "FusedLinear", "FusedLinear", "Neg"]),
        ("gate", ["FusedLinear", "Sigmoid", "Mul", "Mul", "FusedLinear", "Neg"]),
        ("down", ["FusedLinear", "Linear", "Add", "Neg"]),
    ],
)
def test_values_with_other_readers_stay(spoiled: str, types: list[str], tmp_path: Path) -> None:
    made, _ = layer(tmp_path, DType.BFLOAT16, "silu", spoiled)
    assert made.session(exact=True, linear=True)[2] == types
