"""hybridge verify: the real comparison once, and its exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge import api
from tests.cli.command import hybridge

Capture = pytest.CaptureFixture[str]
SHORT = ("--prompt-lengths", "1,6", "--decode-steps", "2")


def test_good_artifact(capfd: Capture, checkpoint: Path, artifact: Path) -> None:
    outcome = hybridge(capfd, "verify", checkpoint, artifact, *SHORT, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.document["passed"] is True and outcome.document["first_failing_layer"] is None
    assert {c["scenario"] for c in outcome.document["comparisons"]} > {"decode"}


def test_difference_is_exit_code_1(
    capfd: Capture, checkpoint: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options reach the comparison, and a report that failed is shown and ends with 1."""
    real, seen = api.verify, {}

    def failing(*paths: Path, **options: object) -> object:
        seen.update(options)
        return real(*paths, prompt_lengths=(3,), decode_steps=0, tolerance=1e-12)

    monkeypatch.setattr(api, "verify", failing)
    outcome = hybridge(capfd, "verify", checkpoint, artifact, *SHORT, "--tolerance", "0.25", "--engine", "onnxruntime")
    assert outcome.code == 1 and "FAILED" in outcome.out
    assert (seen["prompt_lengths"], seen["decode_steps"], seen["tolerance"]) == ((1, 6), 2, 0.25)
    assert seen["engine"] == "onnxruntime"


def test_lengths_beyond_the_artifact(capfd: Capture, checkpoint: Path, artifact: Path) -> None:
    outcome = hybridge(capfd, "verify", checkpoint, artifact, "--prompt-lengths", "299", "--decode-steps", "2")
    assert outcome.code == 2 and "300" in outcome.error
