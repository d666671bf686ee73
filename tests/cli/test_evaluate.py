"""hybridge evaluate: the report once, and its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import hybridge

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("Call me Ishmael. Some years ago, never mind how long precisely, " * 20, encoding="utf-8")
    return path


def test_report(capfd: Capture, artifact: Path, paged: Path, text: Path) -> None:
    options = ("--text", text, "--window", "32", "--windows", "2")
    outcome = hybridge(capfd, "evaluate", artifact, paged, *options, "--json", "--engine", "onnxruntime")
    assert outcome.code == 0, outcome.err
    found = outcome.document
    assert (found["window"], found["windows"], found["tokens"], found["positions"]) == (32, 2, 64, 2 * 15)
    assert 0 <= found["mean_kl_divergence"] <= found["kl_divergence_999"] < 1e-4 and found["same_top"] > 0.9
    assert found["reference"]["perplexity"] == pytest.approx(found["other"]["perplexity"], rel=1e-3)
    assert "dense" in found["reference"]["computed_by"] and "paged" in found["other"]["computed_by"]
    table = hybridge(capfd, "evaluate", artifact, artifact, *options)
    assert table.code == 0 and all(word in table.out for word in ("perplexity", "99.9 % KL divergence", "100.000%"))


def test_bad_options(capfd: Capture, artifact: Path, text: Path) -> None:
    missing = hybridge(capfd, "evaluate", artifact, artifact)
    assert missing.code == 2 and "--text" in missing.error
    long = hybridge(capfd, "evaluate", artifact, artifact, "--text", text, "--window", "301")
    assert long.code == 2 and "--window: expected at most 300 tokens" in long.error and "--max-seq-len" in long.error
