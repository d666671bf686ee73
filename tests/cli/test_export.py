"""hybridge export: the report, the plan, refusals, and nothing left behind."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from hybridge.artifact.config import read_config
from tests.cli.command import hybridge

Capture = pytest.CaptureFixture[str]


def test_report(capfd: Capture, checkpoint: Path, tmp_path: Path) -> None:
    outcome = hybridge(capfd, "export", checkpoint, tmp_path / "out", "--json", "--dtype", "float32", "--max-batch", 3)
    assert outcome.code == 0, outcome.err
    report = outcome.document
    assert report["model_type"] == "nemotron_h" and report["dtype"] == "float32" and report["bytes_linked"] > 5 << 20
    config = read_config(tmp_path / "out")
    assert config.max_batch_size == 3 and config.dtype.value == "float32"
    assert "scan weights" in outcome.err


def test_dry_run_writes_nothing(capfd: Capture, checkpoint: Path, tmp_path: Path) -> None:
    plan = hybridge(capfd, "export", checkpoint, tmp_path / "out", "--dry-run", "--json", "--state-dtype", "bfloat16")
    table = hybridge(capfd, "export", checkpoint, tmp_path / "out", "--dry-run")
    assert plan.code == table.code == 0
    assert len(plan.document["layer_types"]) == 12 and plan.document["weight_bytes"] > 5 << 20
    assert "nemotron_h" in table.out and "12: " in table.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_existing_output_is_refused(capfd: Capture, checkpoint: Path, artifact: Path, flags: tuple[str, ...]) -> None:
    before = sorted((p, p.stat().st_mtime_ns) for p in artifact.rglob("*"))
    outcome = hybridge(capfd, "export", checkpoint, artifact, *flags)
    assert outcome.code == 2 and not outcome.out and "--overwrite" in outcome.error
    assert sorted((p, p.stat().st_mtime_ns) for p in artifact.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere", "out"), "nowhere"),
        (("{checkpoint}", "out", "--layout", "paged", "--all-logits"), "logits_indices"),
        (("{checkpoint}", "out", "--max-batch", "0"), "--max-batch"),
        (("{checkpoint}", "out", "--state-dtype", "float16", "--dry-run"), "or bfloat16 as the model computes in"),
        (("{checkpoint}", "{checkpoint}", "--overwrite"), "is the checkpoint's own folder"),
        (("{checkpoint}", "{checkpoint}/out", "--dry-run"), "is inside the checkpoint"),
    ],
)
def test_bad_input(
    capfd: Capture,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = hybridge(capfd, "export", *(a.format(checkpoint=checkpoint) for a in arguments))
    assert outcome.code == 2 and words in outcome.error
    assert not list(tmp_path.iterdir())


def test_files_are_named_as_the_user_gave_them(
    capfd: Capture, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(checkpoint, "copy")
    text = Path("copy/config.json").read_text(encoding="utf-8")
    Path("copy/config.json").write_text(text.replace('"hidden_size": ', '"hidden_size": -'))
    error = hybridge(capfd, "export", "copy", "out").error
    assert error.startswith("copy/config.json: hidden_size: expected an integer of at least 1, found -")
    Path("copy/config.json").write_text(text.replace('"nemotron_h"', '"abacus"'))
    assert hybridge(capfd, "export", "copy", "out").error.startswith("copy: unsupported model_type 'abacus'")
    Path("copy/config.json").write_text("{")
    assert hybridge(capfd, "export", "./copy/", "out").error.startswith("copy/config.json: is not valid JSON")


def test_missing_torch_is_reported_at_once(
    capfd: Capture, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    outcome = hybridge(capfd, "export", checkpoint, tmp_path / "out")
    assert outcome.code == 2 and "[export]" in outcome.error and "..." not in outcome.err
    assert hybridge(capfd, "export", checkpoint, tmp_path / "out", "--dry-run").code == 0
