"""Every row of the table of standard operators against ONNX Runtime, and what the table does not know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch
from onnx import parser

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.torch.ops import OPERATORS
from hybridge.runtime.engines.torch.program import Program, compile_program
from hybridge.runtime.engines.torch.weights import WeightStore

X, Y = "float[2,3,4] x", "float[2,3,4] y"
# Body of a graph from the inputs before it to z.
CASES = {
    "Equal ReduceSum Softmax TopK": (
        X,
        "k = Constant<value_ints = [2]>() best, at = TopK<axis = -1>(x, k) s = Softmax<axis = 1>(best) "
        "one = Constant<value_int = 1>() chosen = Equal(at, one) c = Cast<to = 1>(chosen) p = Add(s, c) "
        "axes = Constant<value_ints = [-1]>() z = ReduceSum<keepdims = 1>(p, axes)",
    ),
    "Add Greater Where": (f"{X}, {Y}", "a = Greater(x, y) b = Where(a, x, y) z = Add(b, y)"),
    "Cast CastLike Constant Div Mul Sub": (
        f"{X}, {Y}",
        "c = Constant<value_float = 2.5>() d = CastLike(c, x) e = Mul(x, d) f = Sub(e, y) g = Div(f, d) "
        "h = Cast<to = 10>(g) z = Cast<to = 1>(h)",
    ),
    "Cos Gelu Neg Relu Sigmoid Sin Softplus Sqrt Tanh": (
        X,
        'a = Cos(x) b = Sin(a) c = Softplus(b) d = Sigmoid(c) e = Gelu(d) f = Gelu<approximate = "tanh">(e) '
        "g = Relu(f) h = Sqrt(d) i = Neg(h) j = Tanh(i) z = Add(g, j)",
    ),
    "Max": (f"{X}, {Y}", "a = Max(x, y) z = Max(a, x, y)"),
    "Abs Clip Less ReduceMax Round": (
        f"{X}, {Y}",
        "axes = Constant<value_ints = [-1]>() a = Abs(x) m = ReduceMax<keepdims = 1>(a, axes) "
        "low = Constant<value_float = -0.5>() high = Constant<value_float = 1.5>() c = Clip(x, low, high) "
        "half = Constant<value_float = 0.5>() n = Round(y) h = Mul(n, half) r = Round(h) "
        "less = Less(r, x) z = Where(less, c, m)",
    ),
    "Concat Split": (
        f"{X}, {Y}",
        "s = Constant<value_ints = [1, 5, 2]>() c = Concat<axis = -1>(x, y) p, q, r = Split<axis = -1>(c, s) "
        "z = Concat<axis = 2>(r, p, q)",
    ),
    "Reshape Transpose": (
        X,
        "s = Constant<value_ints = [0, -1]>() t = Transpose<perm = [1, 0, 2]>(x) z = Reshape<allowzero = 0>(t, s)",
    ),
    "Expand Range Shape Squeeze Unsqueeze": (
        X,
        "z0 = Constant<value_int = 0>() one = Constant<value_int = 1>() n = Shape<start = 1, end = 2>(x) "
        "axes = Constant<value_ints = [0]>() m = Squeeze(n, axes) r = Range(z0, m, one) "
        "two = Constant<value_ints = [-1, 0]>() u = Unsqueeze(r, two) c = Cast<to = 1>(u) "
        "shape = Constant<value_ints = [2, 1, 4]>() e = Expand(c, shape) z = Add(e, x)",
    ),
    "Gather": ("float[5,4] x, int64[2,3] i", "z = Gather<axis = 0>(x, i)"),
    "GatherElements": (f"{X}, int64[2,2,4] i2", "z = GatherElements<axis = 1>(x, i2)"),
    "Gather of a part": ("float[2,3,4] x, int64[4] i4", "z = Gather<axis = -1>(x, i4)"),
    "DequantizeLinear": (
        "float[6,8] x, float[6,2] s",
        "q = Cast<to = 3>(x) p = Cast<to = 3>(s) z = DequantizeLinear<axis = 1, block_size = 4>(q, s, p)",
    ),
    "DequantizeLinear of a": (
        "float[6,8] x, float[6] s",
        "q = Cast<to = 3>(x) p = Cast<to = 3>(s) z = DequantizeLinear<axis = 0>(q, s, p)",
    ),
    "QuantizeLinear": (
        "float[6,8] x",
        "s = Constant<value_float = 0.0125>() q = QuantizeLinear<output_dtype = 3>(x, s) z = DequantizeLinear(q, s)",
    ),
    "GatherND": (f"{X}, int64[2,1] i3", "z = GatherND<batch_dims = 1>(x, i3)"),
    "MatMul": ("float[2,3,4] x, float[4,5] w", "z = MatMul(x, w)"),
    "RMSNormalization": (
        "float[2,3,4] x, float[4] w",
        "z = RMSNormalization<axis = -1, epsilon = 0.01, stash_type = 1>(x, w)",
    ),
    "RotaryEmbedding": (
        "float[2,3,4,8] q, float[2,4,4] cos, float[2,4,4] sin",
        "z = RotaryEmbedding<interleaved = 0>(q, cos, sin)",
    ),
    "RotaryEmbedding of pairs": (
        "float[2,3,4,8] q, float[2,4,2] cos, float[2,4,2] sin",
        "z = RotaryEmbedding<interleaved = 1, rotary_embedding_dim = 4, num_heads = 3>(q, cos, sin)",
    ),
    "RotaryEmbedding of a part": (
        "float[2,3,4,8] q, float[2,4,2] cos, float[2,4,2] sin",
        "z = RotaryEmbedding<interleaved = 0, rotary_embedding_dim = 4, num_heads = 3>(q, cos, sin)",
    ),
}


def model_of(inputs: str, body: str) -> onnx.ModelProto:
    text = f'<ir_version: 11, opset_import: ["" : 24]> g ({inputs}) => (z) {{ {body} }}'
    model = parser.parse_model(text)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return model


def program_of(model: onnx.ModelProto) -> Program:
    graph = ir.from_proto(model).graph
    return compile_program(graph.inputs, graph.outputs, WeightStore(Path(), torch.device("cpu")))


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    feeds: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        kind, shape = value.type.tensor_type, [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if kind.elem_type == onnx.TensorProto.FLOAT:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
        elif kind.elem_type == onnx.TensorProto.BOOL:
            feeds[value.name] = np.tril(np.ones(shape, bool), 2)
        else:
            feeds[value.name] = rng.integers(0, 3, shape)
    return feeds


@pytest.mark.parametrize("name", list(CASES))
def test_an_operator_computes_what_onnx_runtime_does(name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the other implementation")
    from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
    from hybridge.runtime.engines.onnxruntime.opset import lower_opset

    model = model_of(*CASES[name])
    feeds = feeds_of(model)
    lowered = ir.from_proto(model)
    lower_opset(lowered, installed_kernels())
    session = onnxruntime.InferenceSession(ir.to_proto(lowered).SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(["z"], feeds)
    found = program_of(model).run({key: torch.from_numpy(value) for key, value in feeds.items()})["z"]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-5, atol=2e-6)


def test_every_standard_operator_is_tested() -> None:
    assert {word for name in CASES for word in name.split()} - {"of", "a", "part", "pairs"} == set(OPERATORS[""])


@pytest.mark.parametrize(
    ("inputs", "body", "words"),
    [
        (X, "z = Erf(x)", "does not know the operator Erf: use `engine='onnxruntime'`"),
        (X, "z = Relu<slope = 2>(x)", "Relu: the torch engine does not know its attribute slope"),
        (X, "z = Transpose(x)", "Transpose: expected the attribute perm, found none"),
        ("float[2,3] x, int64[2] s", "z = Reshape(x, s)", "Reshape: the torch engine needs constants as input 1"),
        (
            "float[1,2,3,4] q, float[1,3,2] cos",
            "z = RotaryEmbedding<scale = 1>(q, cos, cos)",
            "RotaryEmbedding: the torch engine does not know its attribute scale",
        ),
    ],
)
def test_unknown_operators_and_attributes_are_named(inputs: str, body: str, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        program_of(model_of(inputs, body))


def test_constants_are_computed_once_and_values_go_when_they_are_done() -> None:
    model = model_of(X, "c = Constant<value_float = 3.0>() d = Mul(c, c) e = Mul(x, d) f = Add(e, e) z = Sub(f, x)")
    program = program_of(model)
    assert [step.name.split()[0] for step in program.steps] == ["Mul", "Add", "Sub"]
    assert [len(step.done) for step in program.steps] == [0, 1, 2]
    x = torch.ones(2, 3, 4)
    assert torch.equal(program.run({"x": x})["z"], 17 * x)
