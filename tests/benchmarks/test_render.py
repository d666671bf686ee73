"""The page is filled completely, and only from correct documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.render import main, page
from tests.benchmarks.documents import all_documents


def test_every_placeholder_is_filled() -> None:
    text = page(all_documents())
    assert "{{" not in text and "}}" not in text
    assert "| random 150M, 64 new tokens |" in text
    assert "12.3 (11.5 to 1234)" in text
    assert "| nodes, all | 499 |" in text
    assert "| ours | 23.500000 | +2.0e-06 % |" in text


def test_tables_have_as_many_cells_as_headings() -> None:
    widths: list[int] = []
    for line in page(all_documents()).splitlines():
        if not line.startswith("|"):
            widths = []
            continue
        widths.append(line.count("|"))
        assert widths[0] == widths[-1], line


def test_a_missing_or_wrong_benchmark_is_refused() -> None:
    documents = all_documents()
    with pytest.raises(ValueError, match="export: expected green gates"):
        page(all_documents(error=1.0))
    del documents["step_cost"]
    with pytest.raises(ValueError, match="step_cost: expected its document"):
        page(documents)


def test_the_command_prints_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.json"
    monkeypatch.setattr("sys.argv", ["render", str(results)])
    assert main() == 2
    assert "No such file" in capsys.readouterr().err
    results.write_text(json.dumps({"benchmarks": all_documents()}), encoding="utf-8")
    assert main() == 0
    assert capsys.readouterr().out == page(all_documents())
