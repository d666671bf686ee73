"""hybridge verify: the real comparison once, and its exit codes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hybridge import api
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.factory import ENGINES
from tests.cli.command import hybridge

Capture = pytest.CaptureFixture[str]
SHORT = ("--prompt-lengths", "1,6", "--decode-steps", "2")


def test_good_artifact(capfd: Capture, checkpoint: Path, artifact: Path) -> None:
    outcome = hybridge(capfd, "verify", checkpoint, artifact, *SHORT, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.document["passed"] is True and outcome.document["first_failing_layer"] is None
    assert {c["scenario"] for c in outcome.document["comparisons"]} > {"decode"}
    assert outcome.document["engines"] == list(dict.fromkeys(c["engine"] for c in outcome.document["comparisons"]))
    assert "onnxruntime" in outcome.document["engines"] and "engine" not in outcome.document


def test_a_named_engine_runs_alone(capfd: Capture, checkpoint: Path, artifact: Path) -> None:
    options = ("--prompt-lengths", "3", "--decode-steps", "0", "--engine", "onnxruntime")
    outcome = hybridge(capfd, "verify", checkpoint, artifact, *options)
    assert outcome.code == 0, outcome.err
    verdict = " ".join(outcome.out.split())
    assert "within 0.0001, prompts of 3 tokens, computed in float32 by onnxruntime, not in the artifact's" in verdict
    assert "no row crossed the chunk of 64 tokens" in verdict and "portable" not in outcome.out


@pytest.mark.parametrize(
    ("checkpoint_name", "out_name", "words"),
    [
        ("checkpoint", "checkpoint", "expected a folder written by hybridge export, found a checkpoint"),
        ("artifact", "artifact", "expected a checkpoint folder, found a folder written by hybridge export"),
        ("nowhere", "artifact", "expected a checkpoint folder, found nothing"),
    ],
)
def test_what_is_compared_is_checked_first(
    capfd: Capture, checkpoint: Path, artifact: Path, checkpoint_name: str, out_name: str, words: str
) -> None:
    paths = {"checkpoint": checkpoint, "artifact": artifact, "nowhere": artifact / "nowhere"}
    outcome = hybridge(capfd, "verify", paths[checkpoint_name], paths[out_name])
    assert outcome.code == 2 and words in outcome.error and "load the reference" not in outcome.err


def test_an_engine_that_cannot_run_is_refused_at_once(
    capfd: Capture, checkpoint: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise EngineError("the torch engine cannot run here")

    monkeypatch.setitem(ENGINES, "torch", dataclasses.replace(ENGINES["torch"], check=fail))
    outcome = hybridge(capfd, "verify", checkpoint, artifact, "--engine", "torch")
    assert outcome.code == 2 and outcome.error == "the torch engine cannot run here"
    assert "load the reference" not in outcome.err


def test_difference_is_exit_code_1(
    capfd: Capture, checkpoint: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options reach the comparison, and a report that failed is shown and ends with 1."""
    real, seen = api.verify, {}

    def failing(*paths: Path, **options: object) -> object:
        seen.update(options)
        return real(*paths, prompt_lengths=(3,), decode_steps=0, tolerance=1e-12, engine="onnxruntime")

    monkeypatch.setattr(api, "verify", failing)
    outcome = hybridge(capfd, "verify", checkpoint, artifact, *SHORT, "--tolerance", "0.25", "--engine", "onnxruntime")
    assert outcome.code == 1 and "FAILED" in outcome.out
    assert (seen["prompt_lengths"], seen["decode_steps"], seen["tolerance"]) == ((1, 6), 2, 0.25)
    assert seen["engine"] == "onnxruntime"


def test_lengths_beyond_the_artifact(capfd: Capture, checkpoint: Path, artifact: Path) -> None:
    outcome = hybridge(capfd, "verify", checkpoint, artifact, "--prompt-lengths", "299", "--decode-steps", "2")
    assert outcome.code == 2 and "300" in outcome.error
