"""Activations of every engine have a small relative error on both tails, and no graph holds one that is not swept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import parser

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch

from hybridge.runtime.engines.artifact_graph import read_model
from hybridge.runtime.engines.onnxruntime.activations import use_exact_activations
from hybridge.runtime.engines.onnxruntime.graph_edit import remove_dead_code
from hybridge.runtime.engines.onnxruntime.graph_form import GraphForm
from hybridge.runtime.engines.onnxruntime.kernels import Kernels, installed_kernels, quiet_options
from hybridge.runtime.engines.onnxruntime.op_bodies import use_op_bodies
from hybridge.runtime.engines.onnxruntime.opset import lower_opset
from hybridge.runtime.engines.onnxruntime.paged_forms import PagedForm
from hybridge.runtime.engines.onnxruntime.paged_rewrite import rewrite_paged
from hybridge.runtime.engines.onnxruntime.rewrite import rewrite, widen_only
from hybridge.runtime.engines.torch.fusion import Phase, fuse_graph
from hybridge.runtime.engines.torch.fusion.elementwise import fuse_elementwise
from hybridge.runtime.engines.torch.graph import clean_graph
from hybridge.runtime.engines.torch.program import compile_program
from hybridge.runtime.engines.torch.weights import WeightStore
from hybridge.trt_plugins.functions import attach_functions
from hybridge.trt_plugins.specs.routed_experts import EXPERT_ACTIVATIONS
from tests.ops.oracle import ConvCase, DeltaCase, SsmCase
from tests.ops.torch_call import run_conv, run_delta, run_ssm, tensors
from tests.runtime.onnxruntime.op_graphs import KERNELS, op_model, run_op
from tests.support.activation_sweep import LIMIT, X, worst_error
from tests.support.artifacts import ArtifactCache, Exported
from tests.support.effort import sample
from tests.support.export_cases import CASES, ON_PUSH
from tests.support.tiny_models import EXPERTS

INSTALLED = installed_kernels()
# Nodes from x to y, by the activation that they are.
GRAPHS = {
    "sigmoid": "y = Sigmoid(x)",
    "silu": "s = Sigmoid(x) y = Mul(x, s)",
    "softplus": "t = Constant<value_float = 20.0>() c = Greater(x, t) s = Softplus(x) y = Where(c, x, s)",
    "gelu": "y = Gelu(x)",
    "gelu_pytorch_tanh": 'y = Gelu<approximate = "tanh">(x)',
    "relu": "y = Relu(x)",
    "relu2": "r = Relu(x) y = Mul(r, r)",
    "exp": "y = Exp(x)",
    "tanh": "y = Tanh(x)",
    "erf": "y = Erf(x)",
}
# The torch engine has no rows for these: no graph of an exporter holds them.
ONLY_IN_FUNCTIONS = ("exp", "tanh", "erf")


def parsed(graph: str) -> ir.Model:
    return ir.from_proto(parser.parse_model(f'<ir_version: 10, opset_import: ["": {INSTALLED.opset}]> g {graph}'))


def graph_of(name: str) -> ir.Model:
    return parsed(f"(float[n] x) => (float[n] y) {{ {GRAPHS[name]} }}")


def run(model: ir.Model | onnx.ModelProto, **feeds: np.ndarray) -> np.ndarray:
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    session = ort.InferenceSession(proto.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


@pytest.mark.parametrize("name", GRAPHS)
def test_nodes_on_onnxruntime(name: str) -> None:
    model = graph_of(name)
    use_exact_activations(model)
    assert worst_error(run(model, x=X), name) < LIMIT


@pytest.mark.skipif(not INSTALLED.scaled_silu, reason="this ONNX Runtime has no ScaledSiLU")
def test_silu_of_short_rows_is_one_node() -> None:
    model = parsed(f"(float[n, 3] x) => (float[n, 3] y) {{ {GRAPHS['silu']} }}")
    use_exact_activations(model, scaled_silu=True)
    assert [node.op_type for node in model.graph] == ["ScaledSiLU"]
    assert worst_error(run(model, x=np.stack([X] * 3, axis=1))[:, 2], "silu") < LIMIT


@pytest.mark.parametrize("name", [name for name in GRAPHS if name not in ONLY_IN_FUNCTIONS])
def test_nodes_of_the_torch_engine(name: str) -> None:
    graph = graph_of(name).graph
    fuse_elementwise(graph)
    clean_graph(graph)
    program = compile_program(graph.inputs, graph.outputs, WeightStore(".", torch.device("cpu")))
    assert worst_error(program.run({"x": torch.from_numpy(X)})["y"].numpy(), name) < LIMIT


def test_a_sigmoid_that_has_other_readers_too() -> None:
    model = parsed("(float[n] x) => (float[n] y, float[n] s) { s = Sigmoid(x) m = Mul(s, x) y = Identity(m) }")
    use_exact_activations(model)
    session = ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"]
    )
    silu, sigmoid = session.run(["y", "s"], {"x": X})
    assert worst_error(silu, "silu") < LIMIT and worst_error(sigmoid, "sigmoid") < LIMIT


def conv_case(time: int) -> ConvCase:
    """A filter that lets each input through."""
    x = X.astype(np.float64).reshape(1, -1, time).swapaxes(1, 2)
    channels = x.shape[2]
    weight = np.zeros((channels, 1, 2))
    weight[:, :, 1] = 1.0
    return ConvCase(x, weight, None, np.zeros((1, channels, 2)), np.array([time]))


def ssm_case(time: int, written: bool) -> SsmCase:
    """One row a value: the last token writes softplus(dt) into an empty state, or decays a state of 1 by it."""
    rows, ones = len(X), np.ones(1)
    dt = np.full((rows, time, 1), -1000.0)
    dt[:, -1, 0] = X
    token = np.full((rows, time, 1, 1), float(written))
    state = np.full((rows, 1, 1, 1), float(not written))
    return SsmCase(token, -ones, token, token, 0 * ones, dt, 0 * ones, state, np.full(rows, time))


def delta_case(time: int) -> DeltaCase:
    """A state of 1, which exp(g) decays."""
    rows = len(X)
    g = np.zeros((rows, time, 1, 1))
    g[:, -1, 0, 0] = X
    token, beta = np.zeros((rows, time, 1, 1)), np.zeros((rows, time, 1))
    return DeltaCase(token, token, token, g, beta, np.ones((rows, 1, 1, 1)), np.full(rows, time))


def function_run(op: str, case: ConvCase | SsmCase | DeltaCase, **attributes: str | int) -> tuple[np.ndarray, ...]:
    """y and the new state of the exported function."""
    model = ir.to_proto(op_model(op, case, **attributes))
    for opset in model.opset_import:
        opset.version = 24 if not opset.domain else opset.version
    attach_functions(model)
    lowered = ir.from_proto(model)
    lower_opset(lowered, INSTALLED)
    inputs = {value.name for value in model.graph.input}
    feeds = {name: getattr(case, name).astype(np.float32) for name in inputs - {"context_lengths"}}
    session = ort.InferenceSession(
        ir.to_proto(lowered).SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"]
    )
    return tuple(session.run(["y", "state_out"], feeds | {"context_lengths": case.context_lengths.astype(np.int32)}))


@pytest.mark.parametrize("time", [1, 50])
def test_silu_of_the_convolution(time: int) -> None:
    case = conv_case(time)
    found = {
        name: run_op("causal_conv1d", case, kernels, time == 1, activation="silu")[0]
        for name, kernels in KERNELS.items()
    }
    found["padded"] = run_op("causal_conv1d", case, INSTALLED, time == 1, padded=True, activation="silu")[0]
    found["function"] = function_run("causal_conv1d", case, activation="silu")[0]
    floats = dict.fromkeys(("x", "weight", "bias", "conv_state"), "float32")
    found["eager"] = run_conv(tensors(case, floats))[0].numpy()
    for way, y in found.items():
        assert worst_error(y.swapaxes(1, 2), "silu") < LIMIT, way


@pytest.mark.parametrize("time", [1, 2])
@pytest.mark.parametrize("written", [True, False], ids=["softplus", "decay"])
def test_time_steps_and_decays_of_mamba2(time: int, written: bool) -> None:
    """exp(-softplus(dt)) is sigmoid(-dt)."""
    case = ssm_case(time, written)
    found = {name: run_op("update_ssm_state", case, kernels, time == 1)[1] for name, kernels in KERNELS.items()}
    found["function"] = function_run("update_ssm_state", case)[1]
    floats = dict.fromkeys(("x", "A", "B", "C", "D", "dt", "dt_bias", "state"), "float32")
    found["eager"] = run_ssm(tensors(case, floats))[1].numpy()
    for way, state in found.items():
        values = state.ravel() if written else state.ravel()[::-1]
        assert worst_error(values, "softplus" if written else "sigmoid") < LIMIT, way


@pytest.mark.parametrize("time", [1, 2])
def test_decays_of_the_delta_rule(time: int) -> None:
    case = delta_case(time)
    found = {"function": function_run("gated_delta_rule", case, use_qk_l2norm=0)[1]}
    if INSTALLED.recurrent_ops:
        found["installed"] = run_op("gated_delta_rule", case, INSTALLED, time == 1, use_qk_l2norm=0)[1]
    floats = dict.fromkeys(("q", "k", "v", "g", "beta", "state"), "float32")
    found["eager"] = run_delta(tensors(case, floats), use_qk_l2norm=0)[1].numpy()
    for way, state in found.items():
        assert worst_error(state, "exp") < LIMIT, way


@dataclass(frozen=True)
class _Expert:
    """One expert of one inner channel, over X."""

    activation: str
    gated: int

    def model(self) -> onnx.ModelProto:
        up = [1.0, 0.0, 0.0, 1.0] if self.gated else [1.0, 0.0]
        rows = len(up) // 2
        numbers = ", ".join(map(str, up))
        model = parser.parse_model(
            f'<ir_version: 10, opset_import: ["": 24, "trt_edgellm": 1]> g (float[n, 1, 2] x, int32[n, 1, 1] ids, '
            f"float[n, 1, 1] weights) => (float[n, 1, 2] y) <float[1, {rows}, 2] up = {{{numbers}}}, "
            "float[1, 2, 1] down = {1.0, 0.0}> { y = trt_edgellm.routed_experts<"
            f'activation = "{self.activation}", gated = {self.gated}>(x, ids, weights, up, down) }}'
        )
        attach_functions(model)
        return model

    def feeds(self) -> dict[str, np.ndarray]:
        x = np.stack([X, np.ones_like(X)], axis=1)[:, None]
        return {"x": x, "ids": np.zeros((len(X), 1, 1), np.int32), "weights": np.ones((len(X), 1, 1), np.float32)}


@pytest.mark.parametrize("gated", [0, 1])
@pytest.mark.parametrize("activation", EXPERT_ACTIVATIONS)
def test_activations_of_experts(activation: str, gated: int) -> None:
    expert = _Expert(activation, gated)
    for way, kernels in (("function", None), ("body", INSTALLED)):
        model = ir.from_proto(expert.model())
        if kernels is not None:
            use_op_bodies(model, kernels, padded=False)
            remove_dead_code(model)
        lower_opset(model, INSTALLED)
        assert worst_error(run(model, **expert.feeds())[:, 0, 0], activation) < LIMIT, way
    operator = torch.ops.trt_edgellm.routed_experts
    up = torch.eye(2)[None] if gated else torch.tensor([[[1.0, 0.0]]])
    inputs = [torch.from_numpy(value) for value in expert.feeds().values()]
    y = operator(*inputs, up, torch.tensor([[[1.0], [0.0]]]), None, None, activation, gated, 1.0, float("inf"), 0.0)
    assert worst_error(y[:, 0, 0].numpy(), activation) < LIMIT


def test_softmax_of_routers() -> None:
    """Of x and 0 it is sigmoid(x)."""
    pairs = np.stack([X, np.zeros_like(X)], axis=1)
    model = parsed("(float[n, 2] x) => (float[n, 2] y) { y = Softmax<axis = -1>(x) }")
    assert worst_error(run(model, x=pairs)[:, 0], "sigmoid") < LIMIT
    assert worst_error(torch.from_numpy(pairs).softmax(-1)[:, 0].numpy(), "sigmoid") < LIMIT


# Operators whose results the tests above, or those of FusedLinear, sweep, in the forms that they take in a graph.
SWEPT = {
    "Erf", "Exp", "Gelu", "Relu", "Sigmoid", "Silu", "Softmax", "Softplus", "Tanh", "TopKSoftmax", "causal_conv1d",
    "gated_delta_rule", "mamba2_conv_scan", "routed_experts", "update_ssm_state", "CausalConvWithState",
    "CausalConv1d", "FusedLinear", "GatedDeltaRule", "LinearAttention", "MoE", "ScaledSiLU", "UpdateSsmState",
}  # fmt: skip
# What moves, compares, counts, adds, multiplies, or divides by a sum or a norm; and attention, whose softmax has
# the tests of attention.
OTHERS = {
    "Abs", "Add", "And", "ArgMax", "Attention", "CachedAttention", "Cast", "CastLike", "Clip", "Concat", "Constant",
    "Conv", "Cos", "CumSum", "Div", "Einsum", "Equal", "Expand", "FusedMatMul", "GatedNorm", "Gather",
    "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "GroupQueryAttention", "GroupedNorm", "Identity",
    "LastToken", "Less", "LessOrEqual", "Linear", "Log", "MatMul", "Max", "Min", "Mod", "Mul", "Neg", "Or", "Pad",
    "PagedAttention",
    "RMSNormalization", "Range", "Reciprocal", "ReduceMax", "ReduceSum", "ReduceSumSquare", "Reshape",
    "RotaryEmbedding", "RotaryTables", "Rotate", "Scan", "ScatterElements", "ScatterND", "Shape", "Sin", "Slice",
    "Split", "Sqrt", "Squeeze", "StepCache", "Sub", "TensorScatter", "TopK", "Transpose", "Unsqueeze", "Where",
    "WideNorm", "attention_step", "cached_attention", "paged_attention", "paged_attention_fp8", "reshape_and_cache",
    "reshape_and_cache_fp8",
}  # fmt: skip
# ONNX Runtime's kernels of these have an absolute error only.
REPLACED = {"Gelu", "QuickGelu", "Sigmoid", "FastGelu", "BiasGelu", "Swish", "HardSwish", "Mish"}


def operators(model: ir.Model) -> set[str]:
    graphs = (model.graph, *(function.graph for function in model.functions.values()))
    return {node.op_type for graph in graphs for node in graph.all_nodes()}


def rewritten(exported: Exported, kernels: Kernels) -> Iterator[ir.Model]:
    """The graphs of both engines with ONNX Runtime."""
    config, folder = exported.config, exported.folder
    yield widen_only(read_model(folder), kernels)
    if config.layout == "paged":
        for form in PagedForm:
            yield rewrite_paged(read_model(folder), config, form, kernels, neighbours=True).model
    else:
        for graph_form in GraphForm:
            yield rewrite(read_model(folder), config, graph_form, kernels).model


def fused(exported: Exported) -> Iterator[ir.Model]:
    """The graphs of the torch engine."""
    for phase in (Phase.PREFILL, Phase.DECODE):
        model = read_model(exported.folder)
        fuse_graph(model, phase, merge=False)
        yield model


def check_operators(exported: Exported) -> None:
    file, on_onnxruntime = read_model(exported.folder), list(rewritten(exported, INSTALLED))
    held = set().union(*map(operators, (file, *on_onnxruntime, *fused(exported))))
    assert held - SWEPT - OTHERS == set(), "neither swept nor known to need no sweep"
    assert set().union(*map(operators, on_onnxruntime)) & REPLACED == set()


@pytest.mark.parametrize("layout", ["dense", pytest.param("paged", marks=pytest.mark.slow)])
def test_a_graph_holds_no_other_operators(layout: str, artifacts: ArtifactCache) -> None:
    overrides = {**EXPERTS["nemotron_h"], "hybrid_override_pattern": "ME*-", "mlp_hidden_act": "gelu"}
    check_operators(artifacts.get("nemotron_h", "float32", overrides, layout=layout))


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(CASES, ON_PUSH))
def test_no_family_has_other_operators(name: str, artifacts: ArtifactCache) -> None:
    check_operators(CASES[name].get(artifacts))
