"""torch.onnx without needless steps: the same results as torch, and its own way where a step is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch.onnx._internal.exporter import _fx_passes, _registration

from hybridge.artifact.errors import ExportError
from hybridge.exporter.ops.aten import aten_translations
from hybridge.exporter.trace import lean_export
from hybridge.exporter.trace.lean_export import lean_passes, lean_tracing, undecomposed
from hybridge.exporter.trace.tracing import OPSET
from tests.support.effort import sample
from tests.support.tiny_models import save_tiny_model
from tests.support.versions import needs_opset_24

ROOT = Path(__file__).resolve().parents[2]
TABLE = aten_translations()
X, Y = torch.linspace(-30, 30, 24).reshape(2, 3, 4), torch.linspace(1, 3, 24).reshape(2, 3, 4)
WEIGHT, IDS = torch.linspace(0, 1, 35).reshape(7, 5), torch.tensor([[1, 6], [0, 3]])
PLAIN: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "add": (lambda x, y: x + y, (X, Y)),
    "add_number": (lambda x, y: x + 0.25, (X, Y)),
    "cat": (lambda x, y: torch.cat([x, y], -1), (X, Y)),
    "div": (lambda x, y: x / y, (X, Y)),
    "embedding": (lambda weight, ids: torch.nn.functional.embedding(ids, weight), (WEIGHT, IDS)),
    "mul": (lambda x, y: x * y * 0.5, (X, Y)),
    "relu": (lambda x, y: torch.relu(x), (X, Y)),
    "sigmoid": (lambda x, y: torch.sigmoid(x), (X, Y)),
    "softplus": (lambda x, y: torch.nn.functional.softplus(x), (X, Y)),
    "transpose": (lambda x, y: x.transpose(-1, 1), (X, Y)),
    "unsqueeze": (lambda x, y: x.unsqueeze(-1).unsqueeze(1), (X, Y)),
    "where": (lambda chosen, y: torch.where(chosen, y, y * 2), (X > 3, Y)),
}
MIXED: dict[str, Callable[..., torch.Tensor]] = {
    "tensors": lambda x, y: x.to(torch.float16) * y,
    "integers_and_a_number": lambda x, y: (x.to(torch.int64) + 0.5) * y,
    "where": lambda x, y: torch.where(x > 0, x.to(torch.float16), y),
    "cat": lambda x, y: torch.cat([x.to(torch.float16), y], -1),
}


class Module(torch.nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.function(x, y)


def traced(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(Module(function), inputs, strict=False)


def exported(program: torch.export.ExportedProgram, inputs: tuple[torch.Tensor, ...]) -> np.ndarray:
    """What ONNX Runtime computes with the program's ONNX model."""
    with lean_passes(program, TABLE):
        model: Any = torch.onnx.export(
            undecomposed(program),
            dynamo=True,
            custom_translation_table=TABLE,
            opset_version=OPSET,
            optimize=False,
            verbose=False,
        )
    session = ort.InferenceSession(model.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {i.name: value.numpy() for i, value in zip(session.get_inputs(), inputs, strict=True)}
    return session.run(None, feeds)[0]


@needs_opset_24
@pytest.mark.parametrize("name", PLAIN)
def test_plain_operators_compute_what_torch_computes(name: str) -> None:
    function, inputs = PLAIN[name]
    found = exported(traced(function, *inputs), inputs)
    np.testing.assert_allclose(found, function(*inputs).numpy(), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["add", "div", "mul"])
def test_a_float32_number_among_16_bit_values_stays_float32_in_the_file(name: str) -> None:
    """Engines that compute in float32 widen the values; a number that was rounded to 8 bits would stay so."""
    program = traced(lambda x, y: getattr(torch, name)(x, 0.22) * y, X.bfloat16(), Y.bfloat16())
    with lean_passes(program, TABLE):
        model: Any = torch.onnx.export(
            undecomposed(program), dynamo=True, custom_translation_table=TABLE, opset_version=OPSET, optimize=False
        )
    numbers = [node.attribute[0].f for node in model.model_proto.graph.node if node.op_type == "Constant"]
    assert numbers == [float(np.float32(0.22))]


def test_the_steps_are_left_out_for_such_a_program_and_come_back() -> None:
    library, promotion = _registration.onnxscript_apis.get_torchlib_ops, _fx_passes.insert_type_promotion_nodes
    program = traced(lambda x, y: torch.relu(x * y) + 1.0, X, Y)
    with pytest.raises(RuntimeError, match="inside"), lean_passes(program, TABLE):
        assert _registration.onnxscript_apis.get_torchlib_ops() == []
        assert _fx_passes.insert_type_promotion_nodes is lean_export._nothing
        raise RuntimeError("inside")
    assert _registration.onnxscript_apis.get_torchlib_ops is library
    assert _fx_passes.insert_type_promotion_nodes is promotion


@needs_opset_24
@pytest.mark.parametrize("name", sample(MIXED, on_push=("tensors", "integers_and_a_number")))
def test_operands_of_several_types_are_promoted(name: str) -> None:
    found = exported(traced(MIXED[name], X, Y), (X, Y))
    expected = MIXED[name](X, Y).numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=2e-6)


@needs_opset_24
def test_an_operator_outside_the_table_is_translated_by_torch() -> None:
    found = exported(traced(lambda x, y: torch.cumsum(x, -1) * y, X, Y), (X, Y))
    np.testing.assert_allclose(found, (torch.cumsum(X, -1) * Y).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_an_export_loads_no_library_of_translations(tmp_path: Path) -> None:
    """In a separate process, where nothing of torch.onnx was imported before."""
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "qwen3_next", num_hidden_layers=1)
    code = (
        "import sys; from pathlib import Path; from hybridge.exporter.export import export_checkpoint; "
        f"export_checkpoint(Path({str(checkpoint)!r}), Path({str(tmp_path / 'out')!r})); "
        "sys.exit('onnxscript.function_libs.torch_lib.ops.core' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_settings_of_tracing_come_back() -> None:
    settings = (torch.fx.config, "do_not_emit_stack_traces"), (torch._dynamo.config, "fake_tensor_cache_enabled")
    before = [getattr(config, name) for config, name in settings]
    with pytest.raises(RuntimeError, match="inside"), lean_tracing():
        assert [getattr(config, name) for config, name in settings] == [True, False]
        raise RuntimeError("inside")
    assert [getattr(config, name) for config, name in settings] == before == [False, True]


def test_another_torch_goes_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_fx_passes, "insert_type_promotion_nodes")
    program = traced(lambda x, y: x * y, X, Y)
    with lean_passes(program, TABLE):
        assert not hasattr(_fx_passes, "insert_type_promotion_nodes")
    assert not hasattr(_fx_passes, "insert_type_promotion_nodes")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x, y: torch.add(x, y, alpha=3), "alpha 1, found 3"),
        (lambda x, y: torch.nn.functional.softplus(x, beta=2), "beta 1, found 2"),
    ],
)
def test_operators_without_a_translation_are_refused(function: Callable[..., torch.Tensor], words: str) -> None:
    with pytest.raises(Exception, match="export") as caught:
        exported(traced(function, X, Y), (X, Y))
    cause: BaseException | None = caught.value
    while cause is not None and not isinstance(cause, ExportError):
        cause = cause.__cause__
    assert cause is not None and words in str(cause)
