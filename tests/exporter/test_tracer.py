"""Recorded nodes compute what torch computes, and what cannot be recorded is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch

from hybridge.artifact.errors import ExportError
from hybridge.exporter.ops.aten import aten_translations
from hybridge.exporter.trace.tracer import LEAST_EXTENT, Tracer, model_of
from tests.support.tiny_models import save_tiny_model
from tests.support.versions import needs_opset_24

ROOT = Path(__file__).resolve().parents[2]
Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
X, Y = torch.linspace(-30, 30, 24).reshape(2, 3, 4), torch.linspace(1, 3, 24).reshape(2, 3, 4)
WEIGHT, IDS = torch.linspace(0, 1, 35).reshape(7, 5), torch.tensor([[1, 6], [0, 3]])
PLAIN: dict[str, tuple[Function, tuple[torch.Tensor, torch.Tensor]]] = {
    "add": (lambda x, y: x + y, (X, Y)),
    "add_number": (lambda x, y: x + 0.25, (X, Y)),
    "cat": (lambda x, y: torch.cat([x, y], -1), (X, Y)),
    "clamp": (lambda x, y: x.clamp(min=-2.5).clamp(max=7.0), (X, Y)),
    "div": (lambda x, y: x / y, (X, Y)),
    "embedding": (lambda weight, ids: torch.nn.functional.embedding(ids, weight), (WEIGHT, IDS)),
    "eq": (lambda weight, ids: ids == 3, (WEIGHT, IDS)),
    "gelu": (lambda x, y: torch.nn.functional.gelu(x, approximate="tanh"), (X, Y)),
    "matmul": (lambda x, y: torch.matmul(x, y.permute(0, 2, 1)), (X, Y)),
    "mul": (lambda x, y: x * y * 0.5, (X, Y)),
    "neg": (lambda x, y: -x, (X, Y)),
    "relu": (lambda x, y: torch.relu(x), (X, Y)),
    "sigmoid": (lambda x, y: torch.sigmoid(x), (X, Y)),
    "softplus": (lambda x, y: torch.nn.functional.softplus(x), (X, Y)),
    "sqrt": (lambda x, y: torch.sqrt(y), (X, Y)),
    "tanh": (lambda x, y: torch.tanh(x), (X, Y)),
    "transpose": (lambda x, y: x.transpose(-1, 1), (X, Y)),
    "unsqueeze": (lambda x, y: x.unsqueeze(-1).unsqueeze(1), (X, Y)),
    "where": (lambda chosen, y: torch.where(chosen, y, y * 2), (X > 3, Y)),
}
REFUSED: dict[str, tuple[Function, str]] = {
    "alpha": (lambda x, y: torch.add(x, y, alpha=3), "alpha 1, found 3"),
    "beta": (lambda x, y: torch.nn.functional.softplus(x, beta=2), "beta 1, found 2"),
    "another tensor": (lambda x, y: x * Y, "is no parameter"),
    "mixed cat": (lambda x, y: torch.cat([x.to(torch.float16), y], -1), "found FLOAT and FLOAT16"),
    "mixed mul": (lambda x, y: x.to(torch.float16) * y, "found FLOAT and FLOAT16"),
    "mixed number": (lambda x, y: x.to(torch.int64) + 0.5, "expected an integer beside values of INT64"),
    "mixed where": (lambda x, y: torch.where(x == 0, x.to(torch.float16), y), "found FLOAT and FLOAT16"),
    "unknown": (lambda x, y: torch.cumsum(x, -1), "aten.cumsum.default has no translation"),
}


def traced(function: Function, inputs: tuple[torch.Tensor, ...], axes: dict[int, str] | None = None) -> ir.Model:
    with torch.inference_mode():
        tracer = Tracer(aten_translations(), axes or {})
        tensors = [each.clone() for each in inputs]
        values = [tracer.bind(tensor, name) for tensor, name in zip(tensors, "xy", strict=True)]
        with tracer:
            result = function(*tensors)
        return model_of(values, [tracer.value(result)], tracer.nodes)


def checked(model: ir.Model) -> onnx.ModelProto:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto


@needs_opset_24
@pytest.mark.parametrize("name", PLAIN)
def test_recorded_nodes_compute_what_torch_computes(name: str) -> None:
    function, inputs = PLAIN[name]
    model = checked(traced(function, inputs))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, dict(zip("xy", (each.numpy() for each in inputs), strict=True)))[0]
    np.testing.assert_allclose(found, function(*inputs).numpy(), rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("name", ["add", "div", "mul"])
def test_a_float32_number_among_16_bit_values_stays_float32_in_the_file(name: str) -> None:
    """Engines that compute in float32 widen the values; a number that was rounded to 8 bits would stay so."""
    model = checked(traced(lambda x, y: getattr(torch, name)(x, 0.22) * y, (X.bfloat16(), Y.bfloat16())))
    numbers = [node.attribute[0].f for node in model.graph.node if node.op_type == "Constant"]
    assert numbers == [float(np.float32(0.22))]


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_nodes_is_refused(name: str) -> None:
    function, words = REFUSED[name]
    with pytest.raises(ExportError, match=words):
        traced(function, (X, Y))


def test_symbolic_axes_keep_their_names_and_are_not_computed_with() -> None:
    rows, tokens = LEAST_EXTENT + 1, LEAST_EXTENT + 2
    with torch.device("meta"):
        inputs = torch.empty(rows, tokens, 6), torch.empty(rows, 1, 6)
    axes = {rows: "rows", tokens: "tokens"}
    graph = traced(lambda x, y: (x.view(rows, tokens, 2, 3) * y.view(rows, 1, 2, 3)).flatten(2), inputs, axes).graph
    assert graph.outputs[0].shape == ir.Shape(["rows", "tokens", 6])
    shapes = [node.attributes["value_ints"].as_ints() for node in graph if node.op_type == "Constant"]
    assert [*map(list, shapes)] == [[0, 0, 2, 3], [0, 1, 2, 3], [0, 0, 6]]
    with pytest.raises(ExportError, match="symbolic"):
        traced(lambda x, y: torch.cat([x, y], 1), inputs, axes)


@pytest.mark.slow
def test_an_export_imports_no_compiler(tmp_path: Path) -> None:
    """Importing these takes longer than an export; in a separate process, where nothing was imported before."""
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "qwen3_next", num_hidden_layers=1)
    code = (
        "import sys; from pathlib import Path; from hybridge.exporter.export import export_checkpoint; "
        f"export_checkpoint(Path({str(checkpoint)!r}), Path({str(tmp_path / 'out')!r})); "
        "sys.exit(', '.join({'torch._dynamo', 'onnxscript'} & sys.modules.keys()) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
