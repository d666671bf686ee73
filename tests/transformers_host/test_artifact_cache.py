"""Cached artifacts are found again, but not those that another exporter wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hybridge.transformers_host import artifact_cache
from hybridge.transformers_host.artifact_cache import EXPORTER, cached_artifact
from tests.project.test_imports import ALLOWED
from tests.transformers_host.conftest import LoadModel


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were exported to."""
    folders: list[Path] = []

    def export(_checkpoint: Path, out: Path, _options: Any) -> None:
        out.mkdir()
        folders.append(out)

    monkeypatch.setattr(artifact_cache, "export_checkpoint", export)
    return folders


@pytest.mark.parametrize("changed", ["source_digest", "tool_versions"])
def test_another_exporter_exports_again(
    changed: str, exported: list[Path], load_model: LoadModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model("llama")
    first = cached_artifact(model, tmp_path, 4, 96)
    assert cached_artifact(model, tmp_path, 4, 96) == first
    monkeypatch.setattr(artifact_cache, changed, lambda *_: {"torch": "another"})
    assert [first, cached_artifact(model, tmp_path, 4, 96)] == exported and len({*exported}) == 2


def test_the_key_holds_all_code_that_an_export_runs() -> None:
    assert {*EXPORTER} == {"exporter", *ALLOWED["exporter"]}
