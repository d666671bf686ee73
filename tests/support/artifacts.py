"""Exports of tiny checkpoints, each made once per test session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.config import RuntimeConfig, read_config
from hybridge.exporter.export import ExportReport, export_checkpoint
from hybridge.exporter.options import ExportOptions
from tests.support.tiny_models import save_tiny_model


@dataclass(frozen=True)
class Exported:
    """One checkpoint and its artifact. Shared between tests: not to be changed."""

    checkpoint: Path
    folder: Path
    options: ExportOptions
    report: ExportReport

    @property
    def config(self) -> RuntimeConfig:
        return read_config(self.folder)


class ArtifactCache:
    """Exports by their arguments."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[str, Exported] = {}

    def get(self, model_type: str, stored: str, overrides: dict[str, Any] | None = None, **options: Any) -> Exported:
        """The artifact of a tiny ``model_type`` checkpoint of type ``stored``; made on first use."""
        key = repr((model_type, stored, overrides, sorted(options.items())))
        if key not in self._made:
            folder = self._root / f"{len(self._made)}-{model_type}"
            checkpoint = save_tiny_model(folder / "checkpoint", model_type, dtype=stored, **(overrides or {}))
            chosen = replace(ExportOptions(max_batch_size=3, max_seq_len=96), **options)
            report = export_checkpoint(checkpoint, folder / "artifact", chosen)
            self._made[key] = Exported(checkpoint, folder / "artifact", chosen, report)
        return self._made[key]


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArtifactCache]:
    """The session's exports."""
    yield ArtifactCache(tmp_path_factory.mktemp("artifacts"))
