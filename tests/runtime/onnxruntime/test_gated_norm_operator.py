"""The gated norm of the library of CPU kernels against float64, and where it replaces nodes of a graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library
from hybridge.runtime.engines.onnxruntime.gated_norms import use_gated_norms
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
from tests.runtime.onnxruntime.own_operator import EACH_SET, run_operator

pytestmark = pytest.mark.skipif(cpu_library().path is None, reason=f"no library: {cpu_library().reason}")


def normed(x: np.ndarray, gate: np.ndarray, weight: np.ndarray, size: int, norm_first: bool) -> np.ndarray:
    """The gated norm in float64, with an epsilon of 1e-5."""
    silu = gate * np.exp(-np.logaddexp(0.0, -gate))

    def norm(v: np.ndarray) -> np.ndarray:
        groups = v.reshape(*v.shape[:-1], -1, size)
        return (groups / np.sqrt((groups * groups).mean(-1, keepdims=True) + 1e-5)).reshape(v.shape)

    weights = np.tile(weight, x.shape[-1] // len(weight))
    return norm(x) * weights * silu if norm_first else norm(x * silu) * weights


@EACH_SET
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(("groups", "size", "weights"), [(1, 384, 1), (3, 33, 3), (2, 5, 1), (4, 1, 4)])
def test_gated_norms(groups: int, size: int, weights: int, norm_first: bool, instructions: int) -> None:
    rng = np.random.default_rng(size)
    x, gate = rng.standard_normal((2, 2, 3, groups * size))
    # Of the last token, gates in both tails; the first one is zero.
    x[0, 0], gate[1, 2] = 0.0, np.resize([-100.0, -87.5, -20.0, 0.0, 20.0, 100.0], groups * size)
    weight = rng.standard_normal(weights * size)
    inputs = {"x": x, "gate": gate, "weight": weight}
    found = run_operator(
        "GatedNorm",
        {name: array.astype(np.float32) for name, array in inputs.items()},
        {"y": x.shape},
        threads=2,
        size=size,
        norm_first=int(norm_first),
        epsilon=1e-5,
        instructions=instructions,
    )["y"]
    x, gate, weight = (array.astype(np.float32).astype(np.float64) for array in inputs.values())
    expected = normed(x, gate, weight, size, norm_first)
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-42)
    assert not found[0, 0].any()


@pytest.mark.parametrize(("columns", "gates", "weights", "size"), [(12, 11, 4, 4), (12, 12, 5, 4), (12, 12, 5, 5)])
def test_a_norm_whose_sizes_disagree_is_refused(columns: int, gates: int, weights: int, size: int) -> None:
    inputs = {"x": np.zeros((1, columns)), "gate": np.zeros((1, gates)), "weight": np.zeros(weights)}
    with pytest.raises(Exception, match="GatedNorm: expected inputs whose sizes agree"):
        run_operator(
            "GatedNorm",
            {name: array.astype(np.float32) for name, array in inputs.items()},
            {"y": (1, columns)},
            size=size,
            norm_first=0,
            epsilon=1e-5,
            instructions=0,
        )


def norm_graph(norm_first: bool, scale: float, shown: bool) -> ir.Model:
    """A norm of groups of 4 of 8 columns with its gate; scale: of the norm itself. shown: the norm is an output too."""
    text = f"""<ir_version: 10, opset_import: ["" : 23]>
    norms (float[b, t, 8] x, float[b, t, 8] gate) => (float[b, t, 8] y{", float[b, t, 2, 4] normed" if shown else ""})
    <float[8] weight = {{1, 2, 3, 4, 5, 6, 7, 8}}, float[4] own = {{{scale}, {scale}, {scale}, {scale}}},
     int64[4] grouped = {{0, 0, 2, 4}}, int64[3] flat = {{0, 0, 8}}>
    {{
        sigmoid = Sigmoid(gate)
        silu = Mul(gate, sigmoid)
        gated = {"Identity(x)" if norm_first else "Mul(x, silu)"}
        groups = Reshape({"x" if norm_first else "gated"}, grouped)
        normed = RMSNormalization<axis = -1>(groups, own)
        joined = Reshape(normed, flat)
        weighted = Mul(joined, weight)
        y = {"Mul(weighted, silu)" if norm_first else "Identity(weighted)"}
    }}"""
    model = ir.from_onnx_text(text)
    shapes = {"sigmoid": 8, "silu": 8, "gated": 8, "joined": 8, "weighted": 8}
    for node in model.graph:
        for value in node.outputs:
            if value.name in shapes:
                value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["b", "t", 8])
    return model


@pytest.mark.parametrize("norm_first", [False, True])
def test_gated_norms_are_replaced_unless_scaled_or_shown(norm_first: bool) -> None:
    for scale, shown, count in ((1.0, False, 1), (2.0, False, 0), (1.0, True, 0)):
        model = norm_graph(norm_first, scale, shown)
        use_gated_norms(model, installed_kernels())
        found = [node for node in model.graph if node.op_type == "GatedNorm"]
        assert len(found) == count, (scale, shown)
        if count:
            assert [value.name for value in found[0].inputs if value] == ["x", "gate", "weight"]
            assert found[0].attributes.get_int("norm_first", -1) == int(norm_first)
            assert found[0].attributes.get_int("size", 0) == 4


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("rows", [1, "c"])
def test_a_gate_that_may_be_broadcast_is_not_replaced(rows: int | str, norm_first: bool) -> None:
    model = norm_graph(norm_first, scale=1.0, shown=False)
    next(value for value in model.graph.inputs if value.name == "gate").shape = ir.Shape([rows, "t", 8])
    use_gated_norms(model, installed_kernels())
    assert "GatedNorm" not in {node.op_type for node in model.graph}
