"""The example of docs/transformers.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.project.test_wheel import ROOT


def test_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "transformers.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len([line for line in block.splitlines() if line]) <= 10
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names: dict[str, Any] = {}
    exec(compile(block, "transformers.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "The President of the United States" in printed
    assert len(list((tmp_path / "cache" / "hybridge" / "models" / "artifacts").iterdir())) == 1
    assert type(names["model"].model).__name__ == "NemotronHModel"
