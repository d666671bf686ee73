"""hybridge bench: what it measures and prints, never how fast it is."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.cli.command import hybridge

Capture = pytest.CaptureFixture[str]
SHORT = ("-p", "5,9", "-n", "3", "-r", "1", "--threads", "1")


@pytest.mark.parametrize(("layout", "rows"), [("artifact", 2), ("paged", 1)])
def test_document(capfd: Capture, layout: str, rows: int, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(layout)
    outcome = hybridge(capfd, "bench", folder, *SHORT, "--batch", str(rows), "--context", "4", "--json")
    assert outcome.code == 0, outcome.err
    report = outcome.document
    assert [r["name"] for r in report["prefill"]] == ["pp5", "pp9"]
    assert [(r["name"], r["rows"], r["context_tokens"]) for r in report["decode"]] == [("tg3", rows, 4)]


def test_table(capfd: Capture, artifact: Path) -> None:
    outcome = hybridge(capfd, "bench", artifact, *SHORT)
    assert outcome.code == 0 and all(name in outcome.out for name in ("pp5", "pp9", "tg3", "p99"))


def test_default_lengths_fit_a_short_artifact(capfd: Capture, artifact: Path) -> None:
    outcome = hybridge(capfd, "bench", artifact, "-r", "1", "--json")
    assert outcome.code == 0, outcome.err
    assert [r["name"] for r in (*outcome.document["prefill"], *outcome.document["decode"])] == ["pp300", "tg128"]


@pytest.mark.parametrize("layout", ["artifact", "paged"])
def test_many_requests(capfd: Capture, layout: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(layout)
    load = ("-p", "9", "-n", "4", "--requests", "3", "--concurrency", "2", "--threads", "1")
    outcome = hybridge(capfd, "bench", folder, *load, "--json")
    assert outcome.code == 0, outcome.err
    report = outcome.document
    assert report["workload"] | {"requests": 3, "input_tokens": 9, "output_tokens": 4} == report["workload"]
    counts = {"time_to_first_token": 3, "time_per_token": 3, "inter_token_latency": 9, "end_to_end": 3}
    assert {name: report[name]["count"] for name in counts} == counts
    shown = hybridge(capfd, "bench", folder, *load).out
    assert all(name in shown for name in ("TTFT", "TPOT", "ITL", "E2EL", "p99", "output tokens/s"))


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--batch", "2"), "--batch: expected none with --requests, --request-rate and --concurrency, found 2"),
        (("--requests", "0"), "--requests: expected at least 1, found 0"),
        (("--request-rate", "0"), "--request-rate: expected requests per second, above 0, found 0.0"),
        (("-p", "5,9"), "--prompt-tokens: expected one length for many requests, found '5,9'"),
        (("-p", "300"), "--prompt-tokens and --new-tokens together: expected at most 300 tokens, found 428"),
    ],
)
def test_bad_loads(capfd: Capture, paged: Path, option: tuple[str, ...], words: str) -> None:
    outcome = hybridge(capfd, "bench", paged, "--concurrency", "1", *option)
    assert outcome.code == 2 and not outcome.out and words in outcome.error


def test_plot(capfd: Capture, artifact: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed (extra plot)")
    outcome = hybridge(capfd, "bench", artifact, *SHORT, "--plot", tmp_path / "speed.png", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.document["prefill"]
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")
    for path, words in ((tmp_path / "speed.gif", ".png"), (tmp_path / "no" / "speed.png", "create it first")):
        assert words in hybridge(capfd, "bench", artifact, "--plot", path).error


def test_plot_without_matplotlib(capfd: Capture, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    outcome = hybridge(capfd, "bench", artifact, "--plot", "speed.png")
    assert outcome.code == 2 and "[plot]" in outcome.error


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("-p", "301"), "--prompt-tokens, or --context and --new-tokens together: expected from 1 to 300"),
        (("-r", "0"), "--repetitions: expected at least 1, found 0"),
        (("--batch", "99"), "--batch: expected from 1 to 8, found 99"),
        (("--context", "0"), "--context: expected"),
        (("-p", "a"), "--prompt-tokens: expected integers"),
    ],
)
def test_bad_requests(capfd: Capture, artifact: Path, option: tuple[str, ...], words: str) -> None:
    outcome = hybridge(capfd, "bench", artifact, *option)
    assert outcome.code == 2 and words in outcome.error
