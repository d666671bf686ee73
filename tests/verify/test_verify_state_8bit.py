"""Artifacts with recurrent states of 8 bits: what an export declares, and that engines agree with transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from hybridge.artifact.config import config_from_json, config_to_json
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ArtifactError, EngineError, SettingError
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.plan import plan_export
from hybridge.inspection import inspect_path
from hybridge.trt_plugins.build.model import parser_model
from hybridge.verification.options import STATE_TOLERANCES, VerifyOptions
from hybridge.verification.reference import Reference
from hybridge.verification.report import VerifyReport
from hybridge.verification.verifier import verify
from tests.support.artifacts import ArtifactCache, Exported
from tests.verify import network_cases

INT8, FP8 = {"state_dtype": DType.INT8}, {"state_dtype": DType.UINT8}
PAGED = {"layout": "paged"}
# Family, options, engine, draft tokens.
CASES: dict[str, tuple[str, dict[str, Any], str, int]] = {
    "nemotron_h dense": ("nemotron_h", INT8, "auto", 0),
    "qwen3_next paged": ("qwen3_next", {**INT8, **PAGED}, "onnxruntime", 3),
    "nemotron_h paged": ("nemotron_h", {**INT8, **PAGED}, "auto", 3),
    "nemotron_h fp8 paged": ("nemotron_h", {**FP8, **PAGED}, "onnxruntime", 3),
    "nemotron_h torch": ("nemotron_h", {**INT8, **PAGED}, "torch", 3),
    "nemotron_h torch dense": ("nemotron_h", INT8, "torch", 0),
    "qwen3_next fp8 dense": ("qwen3_next", FP8, "auto", 0),
    "qwen3_next fp8 paged": ("qwen3_next", {**FP8, **PAGED}, "auto", 3),
    "qwen3_next torch": ("qwen3_next", {**FP8, **PAGED}, "torch", 3),
    "falcon_h1 paged": ("falcon_h1", {**INT8, **PAGED}, "auto", 3),
    "mamba2 dense": ("mamba2", INT8, "auto", 0),
    "minimax dense": ("minimax", INT8, "auto", 0),
    "nemotron_h fp8 keys": ("nemotron_h", {**INT8, **PAGED, "kv_dtype": "fp8_e4m3"}, "auto", 0),
    "nemotron_h bfloat16": ("nemotron_h", {**INT8, "dtype": DType.BFLOAT16}, "auto", 0),
}
# On push, tests of operators and of sessions run such artifacts.
pytestmark = pytest.mark.slow


def verified(made: Exported, engine: str, drafts: int = 0) -> VerifyReport:
    options = VerifyOptions(engine=engine, prompt_lengths=(1, 7, 33), decode_steps=4, speculative_tokens=drafts)
    return verify(made.checkpoint, made.folder, options)


@pytest.mark.parametrize("name", CASES)
def test_artifact_agrees_with_transformers_in_the_same_steps(name: str, artifacts: ArtifactCache) -> None:
    family, options, engine, drafts = CASES[name]
    made = artifacts.get(family, "float32", **options)
    report = verified(made, engine, drafts)
    assert report.passed and report.tolerance >= STATE_TOLERANCES[options["state_dtype"]], report.verdict()
    scenarios = {c.scenario for c in report.comparisons}
    assert {"one-shot prefill", "chunked prefill", "ragged batch", "decode"} <= scenarios
    assert ("draft tokens" in scenarios) == bool(drafts)
    assert {"recurrent_state", "logits"} <= {c.item for c in report.comparisons}
    if options.get("dtype") is None:
        # Where all are rounded alike, only the order of sums differs.
        assert float(np.median([c.error for c in report.comparisons if c.error is not None])) < 1e-5


@pytest.mark.parametrize("engine", ["tensorrt-network", "tensorrt-network-native"])
@pytest.mark.parametrize("options", [{}, PAGED], ids=["dense", "paged"])
@pytest.mark.parametrize("family", ["nemotron_h", "qwen3_next"])
def test_native_layers_take_int8_states(
    family: str, options: dict[str, Any], engine: str, artifacts: ArtifactCache
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
    made = network_cases.exported(artifacts, family, **INT8, **options)
    report = verify(made.checkpoint, made.folder, VerifyOptions(engine, (1, 11), 4))
    assert report.passed, report.verdict()


def test_draft_tokens_with_snapshots_of_states_and_scales(artifacts: ArtifactCache) -> None:
    made = artifacts.get("nemotron_h", "float32", **INT8, **PAGED)
    options = VerifyOptions("onnxruntime", (7,), 4, speculative_tokens=3, draft_states="snapshot")
    report = verify(made.checkpoint, made.folder, options)
    assert report.passed, report.verdict()


def test_a_reference_that_rounds_nothing_disagrees(artifacts: ArtifactCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reference, "round_states", lambda self, cache: None)
    report = verified(artifacts.get("nemotron_h", "float32", **INT8), "onnxruntime")
    wrong = {c.item for c in report.comparisons if not c.passed}
    assert "recurrent_state" in wrong


def test_what_the_export_declares(artifacts: ArtifactCache) -> None:
    for family, axis, options in (("nemotron_h", 3, INT8), ("qwen3_next", 2, {**FP8, **PAGED})):
        made = artifacts.get(family, "float32", **options)
        config = made.config
        state, scales = config.bindings.input("recurrent_state_0"), config.bindings.input("state_scales_0")
        assert state.dtype is options["state_dtype"] and scales.dtype is DType.FLOAT32
        assert scales.shape == tuple(size for i, size in enumerate(state.shape) if i != axis)
        assert scales.replaced_by == "present_state_scales_0"
        name = {DType.INT8: "int8", DType.UINT8: "fp8_e4m3"}[options["state_dtype"]]
        assert config_to_json(config)["recurrent_state_dtype"] == name
        assert config_from_json(config_to_json(config)) == config
        model = onnx.load(made.folder / "model.onnx", load_external_data=False)
        assert any(node.op_type.endswith("_8bit") for node in model.graph.node)


def test_a_row_takes_a_byte_a_number_and_a_scale_a_row(artifacts: ArtifactCache) -> None:
    made = artifacts.get("nemotron_h", "float32", **INT8)
    layers = made.config.recurrent_layers
    sizes: list[int] = [4 * n.conv_dim * n.conv_kernel + n.num_heads * n.head_dim * (n.state_size + 4) for n in layers]
    expected = sum(sizes)
    assert plan_export(made.checkpoint, made.options).to_json()["state_bytes_per_row"] == expected
    found: list[int] = [state.bytes_per_row for state in inspect_path(made.folder).states]
    assert sum(found) == expected


def test_what_cannot_hold_such_states_is_refused_by_name(artifacts: ArtifactCache, tmp_path: Any) -> None:
    made = artifacts.get("nemotron_h", "float32", **FP8)
    with pytest.raises(EngineError, match="of int8, or of 16 or 32 bits, which TensorRT engines take, found fp8_e4m3"):
        parser_model(made.folder, made.config, 64)
    with pytest.raises(SettingError, match=r"state_dtype: expected one of float32, float16, .*fp8_e4m3, found 'int4'"):
        ExportOptions.named(state_dtype="int4")
    mamba = artifacts.get("mamba", "float32")
    with pytest.raises(SettingError, match="for layers of type mamba with the operator selective_scan, found int8"):
        plan_export(mamba.checkpoint, replace(mamba.options, **INT8))


def test_a_config_without_scales_is_refused(artifacts: ArtifactCache) -> None:
    data = config_to_json(artifacts.get("nemotron_h", "float32").config)
    with pytest.raises(
        ArtifactError, match=r"expected the state state_scales_0 float32\[.*\] beside recurrent_state_0"
    ):
        config_from_json({**data, "recurrent_state_dtype": "int8"})
