"""attention_step and both attentions over its caches against a loop over tokens, in torch and as ONNX functions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ArtifactError
from hybridge.trt_plugins import torch_ops
from hybridge.trt_plugins.build.attention import native_attention
from hybridge.trt_plugins.catalog import DOMAIN, OPS
from hybridge.trt_plugins.functions import attach_functions

ort = pytest.importorskip("onnxruntime", reason="runs the functions")

from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels  # noqa: E402
from hybridge.runtime.engines.onnxruntime.opset import lower_opset  # noqa: E402

STEP, ATTENTION, LATENT_ATTENTION = (OPS[n] for n in ("attention_step", "cached_attention", "cached_latent_attention"))
KV_HEADS, HEADS, HEAD_DIM, SCALE = 2, 6, 5, 0.3


@dataclass(frozen=True)
class Case:
    """Rows of ``context`` new tokens after ``past`` ones, in a step of ``time`` and caches of ``room`` positions.

    latents: keys are the values too.
    """

    time: int
    room: int
    context: tuple[int, ...]
    past: tuple[int, ...]
    window: int = 0
    sinks: bool = False
    latents: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        """Inputs of the attention before those of its step."""
        return ("query", "key", "past_key") if self.latents else ("query", "key", "value", "past_key", "past_value")


CASES = {
    "prefill": Case(7, 7, (7, 3, 1), (0, 0, 0)),
    "a later chunk": Case(4, 13, (4, 2, 3), (9, 3, 0)),
    "padding past the end": Case(5, 9, (2, 5, 1), (7, 4, 8)),
    "an idle row": Case(3, 8, (0, 3, 0), (8, 2, 0)),
    "decode": Case(1, 11, (1, 1, 0), (10, 0, 4)),
    "window": Case(5, 12, (5, 2, 4), (7, 0, 3), window=3),
    "window of one": Case(4, 6, (4, 1, 0), (2, 5, 6), window=1),
    "window of all": Case(2, 6, (2, 2, 1), (4, 0, 5), window=6),
    "sinks": Case(5, 9, (2, 5, 0), (7, 4, 8), sinks=True),
    "latents": Case(5, 9, (2, 5, 0), (7, 4, 8), latents=True),
    "decode of latents": Case(1, 11, (1, 1, 0), (10, 0, 4), latents=True),
    "sinks and a window": Case(1, 11, (1, 1, 0), (10, 0, 4), window=4, sinks=True),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def arrays(case: Case) -> dict[str, np.ndarray]:
    """Inputs of both operators by name, float64."""
    rng, batch = np.random.default_rng(3), len(case.context)
    found: dict[str, np.ndarray] = {
        "input_ids": np.zeros((batch, case.time), np.int64),
        "context_lengths": np.array(case.context, np.int32),
        "past_lengths": np.array(case.past, np.int32),
        "query": rng.standard_normal((batch, HEADS, case.time, HEAD_DIM)),
    }
    for name, size in (("key", case.time), ("value", case.time), ("past_key", case.room), ("past_value", case.room)):
        found[name] = rng.standard_normal((batch, KV_HEADS, size, HEAD_DIM))
    # One far below and one far above all scores.
    found["sinks"] = np.array([-60.0, 0.0, 1.5, -1.0, 60.0, 3.0])
    return found


def by_loop(case: Case, given: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """y, zero at padding, and the caches."""
    if case.latents:
        given = given | {"value": given["key"], "past_value": given["past_key"]}
    keys, values = given["past_key"].copy(), given["past_value"].copy()
    y = np.zeros_like(given["query"])
    for row, (count, past) in enumerate(zip(case.context, case.past, strict=True)):
        keys[row, :, past : past + count] = given["key"][row, :, :count]
        values[row, :, past : past + count] = given["value"][row, :, :count]
        for token in range(count):
            end = past + token + 1
            first = max(0, end - case.window) if case.window else 0
            for head in range(HEADS):
                group = head * KV_HEADS // HEADS
                scores = SCALE * keys[row, group, first:end] @ given["query"][row, head, token]
                weights = np.exp(scores - scores.max())
                sink = np.exp(given["sinks"][head] - scores.max()) if case.sinks else 0.0
                y[row, head, token] = weights / (weights.sum() + sink) @ values[row, group, first:end]
    return (y, keys) if case.latents else (y, keys, values)


def assert_equal(case: Case, found: list[np.ndarray], wanted: tuple[np.ndarray, ...], tolerance: float) -> None:
    """Caches bit for bit, y of tokens that are no padding."""
    for cache, expected in zip(found[1:], wanted[1:], strict=True):
        np.testing.assert_array_equal(cache, expected.astype(cache.dtype))
    for row, count in enumerate(case.context):
        np.testing.assert_allclose(found[0][row, :, :count], wanted[0][row, :, :count], rtol=tolerance, atol=tolerance)


@cases
def test_the_eager_operators_are_the_loop(case: Case) -> None:
    torch_ops.register()
    given = {name: torch.from_numpy(value) for name, value in arrays(case).items()}
    cache, lengths = given["past_key"], (given["context_lengths"], given["past_lengths"])
    step = torch.ops.trt_edgellm.attention_step(given["input_ids"], *lengths, cache, case.window)
    inputs = [given[name] for name in case.tensors]
    if case.latents:
        found = torch.ops.trt_edgellm.cached_latent_attention(*inputs, *step, SCALE)
    else:
        found = torch.ops.trt_edgellm.cached_attention(*inputs, *step, given["sinks"] if case.sinks else None, SCALE)
    assert_equal(case, [tensor.numpy() for tensor in found], by_loop(case, arrays(case)), 1e-12)


def test_scores_beside_sinks_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridge.trt_plugins.reference.cached_attention._TOKENS", 2)
    test_the_eager_operators_are_the_loop(CASES["sinks"])


def model(case: Case) -> onnx.ModelProto:
    names, own = [tensor.name for tensor in STEP.outputs], ["sinks"] if case.sinks else []
    spec, window = LATENT_ATTENTION if case.latents else ATTENTION, case.window
    lengths = ["input_ids", "context_lengths", "past_lengths", "past_key"]
    nodes = [
        helper.make_node(STEP.name, lengths, names, name="step", domain=DOMAIN, sliding_window=window),
        helper.make_node(
            spec.name,
            [*case.tensors, *names, *own],
            [output.name for output in spec.outputs],
            name="attention",
            domain=DOMAIN,
            scale=SCALE,
        ),
    ]
    sizes = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    read = [tensor for tensor in spec.inputs if tensor.name in (*case.tensors, *own)]
    tensors = {t.name: t for t in (*STEP.inputs[:3], *read, *spec.outputs)}
    infos = {
        name: helper.make_tensor_value_info(
            name,
            (t.dtype if isinstance(t.dtype, DType) else DType.FLOAT32).onnx,
            [sizes.get(str(dim), dim) for dim in t.dims],
        )
        for name, t in tensors.items()
    }
    outputs = [infos.pop(output.name) for output in spec.outputs]
    graph = helper.make_graph(nodes, "attention", list(infos.values()), outputs)
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid(DOMAIN, 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    attach_functions(made)
    onnx.checker.check_model(made, full_check=True)
    return made


@cases
@pytest.mark.parametrize("form", ["function", "inlined", "function of an older opset"])
def test_the_functions_are_the_loop(form: str, case: Case) -> None:
    made = model(case)
    if form == "inlined":
        made = native_attention(made)
        assert not made.functions and {node.domain for node in made.graph.node} == {""}
    lowered = ir.from_proto(made)
    kernels = installed_kernels()
    lower_opset(lowered, replace(kernels, opset=23) if "older" in form else kernels)
    session = ort.InferenceSession(ir.to_proto(lowered).SerializeToString(), providers=["CPUExecutionProvider"])
    given = arrays(case)
    feeds = {
        i.name: given[i.name].astype(np.float32) if given[i.name].dtype == float else given[i.name]
        for i in session.get_inputs()
    }
    assert_equal(case, session.run(None, feeds), by_loop(case, given), 2e-5)


def test_layers_of_several_windows_share_one_function() -> None:
    made = model(CASES["decode"])
    for node in list(made.graph.node):
        other = onnx.NodeProto()
        other.CopyFrom(node)
        other.name += ".1"
        del other.output[:]
        other.output.extend(f"{name}.1" for name in node.output)
        if other.op_type == STEP.name:
            other.attribute[0].i = 3
        made.graph.node.append(other)
    attach_functions(made)
    assert [function.name for function in made.functions] == [STEP.name, ATTENTION.name]


def test_a_body_that_calls_itself_is_refused() -> None:
    made = model(CASES["decode"])
    (body,) = (function for function in made.functions if function.name == ATTENTION.name)
    body.node.append(made.graph.node[1])
    body.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    with pytest.raises(ArtifactError, match=r"standard operators.*found operators of trt_edgellm in cached_attention"):
        native_attention(made)
