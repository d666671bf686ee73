"""The runner: options, documents without numbers when a gate fails, targets on the right side."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.machine import OtherWork
from benchmarks.measure import Spread
from benchmarks.registry import ENTRIES, benchmark
from benchmarks.runner import Benchmark, Gate, Report, Target, require, table_text
from hybridge.artifact.errors import EngineError
from tests.benchmarks.documents import all_documents, document_of


def test_a_document_names_machine_versions_and_commit() -> None:
    document = json.loads(json.dumps(all_documents()["export"]))
    assert document["machine"]["cpu"] and document["machine"]["cores"] >= 1 and document["machine"]["memory_gb"] > 0
    assert document["versions"]["torch"] != "not installed"
    assert document["commit"]
    assert document["correct"] is True and document["results"]


@pytest.mark.parametrize("error", [1e-3, math.nan, math.inf])
def test_wrong_results_have_no_numbers(error: float) -> None:
    document = document_of("scheduler", Report((Gate("logits", error, 1e-4),), {"speed": 1.0}))
    assert document["correct"] is False
    assert "results" not in document and "targets" not in document


@pytest.mark.parametrize(("direction", "value", "met"), [("at least", 1.4, False), ("at most", 1.4, True)])
def test_a_target_has_a_side(direction: str, value: float, met: bool) -> None:
    assert Target("x", value, direction, 1.5, "s").met is met


def test_the_table_shows_gates_and_targets() -> None:
    text = table_text(all_documents()["start_up"])
    assert "gate   ok   logits" in text
    assert "target met  a thing: 2 x (at least 1.5)" in text


def test_a_busy_machine_is_mentioned() -> None:
    document = all_documents()["start_up"]
    assert "noisy" not in table_text(document)
    document["machine"]["other_work"] = 0.4
    assert "noisy: other work took 40% of the processor time" in table_text(document)


def test_other_work_does_not_count_our_own() -> None:
    share = OtherWork().share()
    assert share is None or share >= 0.0


NO_OPTION = Gate("a shape", 0.0, 0.0)


@dataclass(frozen=True)
class Settings:
    """Settings of every kind that is an option."""

    repeats: int = 7
    device: str = "cpu"
    loads: tuple[float, ...] = (0.5,)
    most: int | None = None
    fast: bool = False
    shape: Gate = NO_OPTION
    work: str | None = None


def test_settings_are_options(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Settings] = []

    def run(settings: Settings) -> Report:
        seen.append(settings)
        print("a package's own message")
        return Report((Gate("logits", 0.0, 1e-4),), {"rate": Spread(2.0, 1.0, 3.0, 3)})

    arguments = "--json --repeats 3 --device cuda --loads 0.1 1 --most 2 --fast --work there --commit abc"
    assert Benchmark("name", run).main(arguments.split(), "") == 0
    document = json.loads(capsys.readouterr().out)
    given = Settings(3, "cuda", (0.1, 1.0), 2, True, work="there")
    assert seen == [given] and document["commit"] == "abc" and document["benchmark"] == "name"
    assert document["results"]["rate"] == {"median": 2.0, "min": 1.0, "max": 3.0, "repeats": 3}
    assert document["settings"]["loads"] == [0.1, 1.0] and "work" not in document["settings"]
    for wrong in (["--repeats", "0"], ["--shape", "x"]):
        with pytest.raises(SystemExit) as stop:
            Benchmark("name", run).main(wrong, "")
        assert stop.value.code == 2
    assert len(seen) == 1


def test_what_cannot_run_ends_with_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(settings: Settings) -> Report:
        raise EngineError("expected a GPU, found none")

    assert Benchmark("name", run).main([], "") == 2
    assert capsys.readouterr().err == "error: expected a GPU, found none\n"
    assert Benchmark("name", run).main(["--from", str(tmp_path / "none.json")], "") == 2
    with pytest.raises(SystemExit) as stop:
        Benchmark("name", run).main(["--plot", "x.svg"], "")
    assert stop.value.code == 2 and "expected a benchmark with a picture" in capsys.readouterr().err


def test_wrong_results_end_with_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    def run(settings: Settings) -> Report:
        require(Gate("logits", 0.0, 1e-4), Gate("tokens", 1.0, 0.0))
        pytest.fail("measured after a gate had failed")

    assert Benchmark("name", run).main([], "") == 1
    printed = capsys.readouterr()
    assert "ok   logits" in printed.out and "FAIL tokens" in printed.out and "wrong results" in printed.err


def test_a_partial_report_keeps_its_rows() -> None:
    report = Report((Gate("rows", 1.0, 0.0),), {"rows": [1]}, partial=True)
    document = document_of("scheduler", report)
    assert not document["correct"] and document["results"] == {"rows": [1]}


def test_a_kept_document_is_shown_and_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(all_documents()["serving"]), encoding="utf-8")
    assert benchmark("serving").main(["--from", str(kept)], "") == 0
    assert "target met  a thing" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_every_benchmark_has_options_with_defaults(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark(name).settings()
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0 and "--repeats" in capsys.readouterr().out


def test_names_are_listed_and_unknown_ones_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ENTRIES)
    assert main(["speed"]) == 2
    assert "found speed" in capsys.readouterr().err
