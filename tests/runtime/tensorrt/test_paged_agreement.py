"""The paged TensorRT engine against transformers; its contexts compute the network that the parser makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.runtime.engines.rollback.modes import REPLAY, SNAPSHOT
from hybridge.verification.options import VerifyOptions
from hybridge.verification.verifier import verify
from tests.support.artifacts import ArtifactCache
from tests.support.quantized_checkpoints import eight_bits, save_quantized
from tests.verify.network_cases import exported as exported_family

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")

from tests.runtime.tensorrt.paged_double import ParsedEngine, use_double

# Head sizes that the plugins' kernels support.
LARGE = {"head_dim": 64, "hybrid_override_pattern": "M-*M", "mamba_head_dim": 32, "ssm_state_size": 64, "n_groups": 2}
DRAFTS = 2
FORMS: dict[str, dict[str, Any]] = {
    "replay": {"plugins": "on", "draft_states": REPLAY},
    "snapshot": {"plugins": "on", "draft_states": SNAPSHOT},
    "native": {"plugins": "off", "draft_states": SNAPSHOT},
}


@pytest.mark.parametrize("form", ["replay", *(pytest.param(f, marks=pytest.mark.slow) for f in ("snapshot", "native"))])
def test_steps_and_draft_tokens_agree_with_transformers(
    form: str, artifacts: ArtifactCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = artifacts.get("nemotron_h", "bfloat16", LARGE, layout="paged", dtype=DType.FLOAT16)
    parsed = ParsedEngine(exported.folder, tmp_path, speculative_tokens=DRAFTS, **FORMS[form])
    assert (parsed.record.advance is not None) is (form == "replay")
    memory = use_double(parsed, monkeypatch)
    options = VerifyOptions("tensorrt", (1, 9), 4, speculative_tokens=DRAFTS)
    report = verify(exported.checkpoint, exported.folder, options)
    assert report.passed, (report.verdict(), [c for c in report.comparisons if not c.passed][:3])
    compared = {(c.engine, c.scenario, c.item) for c in report.comparisons}
    for scenario in ("one-shot prefill", "chunked prefill", "prefill beside decode", "decode", "draft tokens"):
        assert ("tensorrt", scenario, "logits") in compared and ("tensorrt", scenario, "recurrent_state") in compared
    assert ("tensorrt", "free blocks and slots", "unchanged") in compared
    assert memory.graphs and all(graph.launches for graph in memory.graphs)


@pytest.mark.slow
def test_keys_and_values_of_8_bits_agree_with_transformers(
    artifacts: ArtifactCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums rounded to 16 bits move a few numbers to the next one of e4m3, 2**-3 away: up to 2e-2 of a tensor's norm."""
    exported = artifacts.get("nemotron_h", "bfloat16", LARGE, layout="paged", dtype=DType.FLOAT16, kv_dtype="fp8_e4m3")
    use_double(ParsedEngine(exported.folder, tmp_path, plugins="on"), monkeypatch)
    options = VerifyOptions("tensorrt", (1, 9), 3, tolerance=0.05)
    report = verify(exported.checkpoint, exported.folder, options)
    assert report.passed, (report.verdict(), [c for c in report.comparisons if not c.passed][:3])
    assert ("free blocks and slots", "unchanged") in {(c.scenario, c.item) for c in report.comparisons}


@pytest.mark.slow
@pytest.mark.parametrize("mode", [REPLAY, SNAPSHOT])
def test_gated_delta_net_with_experts_agrees_with_transformers(
    mode: str, artifacts: ArtifactCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = exported_family(artifacts, "qwen3_next", "bfloat16", layout="paged", dtype=DType.FLOAT16)
    parsed = ParsedEngine(exported.folder, tmp_path, speculative_tokens=DRAFTS, plugins="on", draft_states=mode)
    assert "gated_delta_rule" in parsed.record.plugins.ops
    use_double(parsed, monkeypatch)
    report = verify(
        exported.checkpoint, exported.folder, VerifyOptions("tensorrt", (1, 9), 3, speculative_tokens=DRAFTS)
    )
    assert report.passed, (report.verdict(), [c for c in report.comparisons if not c.passed][:3])
    assert ("draft tokens", "recurrent_state") in {(c.scenario, c.item) for c in report.comparisons}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int", "float"])
def test_weights_of_8_bits_agree_with_the_checkpoint(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "head_dim": 64}
    quantized, _ = save_quantized(tmp_path, "qwen3_5_text", eight_bits(kind, "channel"), **overrides)
    options = ExportOptions(max_batch_size=3, max_seq_len=96, dtype=DType.FLOAT32, layout="paged")
    export_checkpoint(quantized, tmp_path / "out", options)
    (tmp_path / "engine").mkdir()
    parsed = ParsedEngine(tmp_path / "out", tmp_path / "engine", plugins="on")
    kinds = {layer.kind for layer in parsed.parsed.network.description.layers}
    assert "DEQUANTIZE" in kinds and parsed.record.plugins.ops
    use_double(parsed, monkeypatch)
    report = verify(quantized, tmp_path / "out", VerifyOptions("tensorrt", (5, 9), 2, 1e-5))
    assert report.passed, (report.verdict(), max(c.error for c in report.comparisons))
