"""Exports of tiny checkpoints, each made once per test session, whichever worker process asks first."""

from __future__ import annotations

import fcntl
import hashlib
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hybridge.artifact.config import RuntimeConfig, read_config
from hybridge.exporter.options import ExportOptions
from tests.support.session_folders import session_folder
from tests.support.tiny_models import save_tiny_model

if TYPE_CHECKING:
    from hybridge.exporter.export import ExportReport


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
    """Exports by their arguments, in a folder that the worker processes of a session share."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._loaded: dict[str, Exported] = {}

    def get(
        self,
        model_type: str,
        stored: str,
        overrides: dict[str, Any] | None = None,
        *,
        mtp_pattern: str | None = None,
        **options: Any,
    ) -> Exported:
        """The artifact of a tiny ``model_type`` checkpoint of type ``stored``; made on first use.

        ``mtp_pattern``: the layers of its multi-token prediction head ("" for Qwen's); none where it is None.
        """
        chosen = replace(ExportOptions(max_batch_size=3, max_seq_len=96), **options)
        key = repr((model_type, stored, overrides or {}, mtp_pattern, chosen))
        if key not in self._loaded:
            folder = self._root / f"{hashlib.sha256(key.encode()).hexdigest()[:12]}-{model_type}"
            folder.mkdir(exist_ok=True)
            record = folder / "exported.pickle"
            with (folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not record.exists():
                    # Every test process loads this file: torch only where something is exported.
                    from hybridge.exporter.export import export_checkpoint
                    from tests.support.mtp_checkpoints import save_with_mtp_head

                    checkpoint, changes = folder / "checkpoint", {"dtype": stored, **(overrides or {})}
                    if mtp_pattern is None:
                        save_tiny_model(checkpoint, model_type, **changes)
                    else:
                        save_with_mtp_head(checkpoint, model_type, pattern=mtp_pattern, **changes)
                    report = export_checkpoint(checkpoint, folder / "artifact", chosen)
                    record.write_bytes(pickle.dumps(Exported(checkpoint, folder / "artifact", chosen, report)))
            self._loaded[key] = pickle.loads(record.read_bytes())
        return self._loaded[key]


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArtifactCache]:
    """The session's exports."""
    yield ArtifactCache(session_folder(tmp_path_factory, "artifacts"))
