"""Documents: no numbers without green gates, targets on the right side."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks.command import run_command, run_in_folder
from benchmarks.machine import OtherWork
from benchmarks.report import Gate, Report, Target, document_text, table_text
from tests.benchmarks.documents import all_documents


def test_a_document_names_machine_versions_and_commit() -> None:
    document = json.loads(document_text(all_documents()["export"]))
    assert document["machine"]["cpu"] and document["machine"]["cores"] >= 1 and document["machine"]["memory_gb"] > 0
    assert document["versions"]["torch"] != "not installed"
    assert document["commit"]
    assert document["correct"] is True and document["results"]


@pytest.mark.parametrize("error", [1e-3, math.nan, math.inf])
def test_wrong_results_have_no_numbers(error: float) -> None:
    document = Report("name", {}, (Gate("logits", error, 1e-4),), {"speed": 1.0}).to_json()
    assert document["correct"] is False
    assert "results" not in document and "targets" not in document


@pytest.mark.parametrize(("direction", "value", "met"), [("at least", 1.4, False), ("at most", 1.4, True)])
def test_a_target_has_a_side(direction: str, value: float, met: bool) -> None:
    assert Target("x", value, direction, 1.5, "s").met is met


def test_the_table_shows_gates_and_targets() -> None:
    text = table_text(all_documents()["step_cost"])
    assert "gate   ok   logits" in text
    assert "target met  a thing: 2 x (at least 1.5)" in text


def test_a_busy_machine_is_mentioned() -> None:
    document = all_documents()["step_cost"]
    assert "noisy" not in table_text(document)
    document["machine"]["other_work"] = 0.4
    assert "noisy: other work took 40% of the processor time" in table_text(document)


def test_other_work_does_not_count_our_own() -> None:
    share = OtherWork().share()
    assert share is None or share >= 0.0


def test_the_command_prints_one_document_or_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []

    def benchmark(repeats: int, error: float = 0.0) -> Report:
        seen.append(repeats)
        return Report("name", {}, (Gate("logits", error, 1e-4),))

    monkeypatch.setattr("sys.argv", ["name", "--json", "--repeats", "3"])
    assert run_command("", benchmark, 7) == 0
    assert json.loads(capsys.readouterr().out)["benchmark"] == "name"
    monkeypatch.setattr("sys.argv", ["name"])
    assert run_command("", lambda repeats: benchmark(repeats, error=1.0), 7) == 1
    printed = capsys.readouterr()
    assert "FAIL logits" in printed.out and "wrong results" in printed.err
    assert seen == [3, 7]


def test_a_benchmark_gets_the_folder_of_its_files() -> None:
    given: list[tuple[int, str | None]] = []

    def benchmark(repeats: int, work: str | None) -> Report:
        given.append((repeats, work))
        return Report("name", {}, ())

    for arguments in ([], ["--work", "kept", "--repeats", "3"]):
        run_in_folder("", benchmark, 7, arguments)
    assert given == [(7, None), (3, "kept")]
