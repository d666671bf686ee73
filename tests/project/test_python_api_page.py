"""The blocks of docs/python_api.md run, one after another, as a reader would run them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from hybridge import errors
from runtime.generation import Generation
from tests.project.test_wheel import ROOT

PAGE = ROOT / "docs" / "python_api.md"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_blocks_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    printed = {}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)
        printed[number] = capsys.readouterr().out
    assert len(printed) == 8 and all(text.strip() for text in printed.values())
    assert "verified" in printed[0]
    assert "'rows'" in printed[6] and "state_bytes_per_candidate" in printed[6]
    assert names["answer"].cached_tokens == names["prefix"].length > 0
    assert "prompt: expected at most 512 tokens (max_seq_len)" in printed[7] and "nowhere" in printed[7]


def test_table_names_every_field_of_a_generation(page: str) -> None:
    table = page[page.index("| field |") : page.index("The prompt and all new tokens")]
    named = set(re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in table.splitlines() if "|" in row)))
    assert named == {field.name for field in dataclasses.fields(Generation)}


def test_errors_of_the_table_exist(page: str) -> None:
    table = page[page.index("| error |") :]
    named = re.findall(r"`(\w+Error)`", table)
    assert len(named) >= 6
    assert all(issubclass(getattr(errors, name), errors.HybridgeError) for name in named)
