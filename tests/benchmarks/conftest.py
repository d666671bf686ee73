"""Artifacts that several benchmarks measure are exported once: none of these tests asks what an export costs."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import artifacts


@pytest.fixture(scope="package", autouse=True)
def shared_exports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """``exported`` of all benchmarks copies what it made before of the same checkpoint and options."""
    root, real = tmp_path_factory.mktemp("exports"), artifacts.exported

    def exported(checkpoint: Path, out: Path, **options: Any) -> Path:
        key = hashlib.sha256(repr(sorted(options.items())).encode())
        for path in sorted(path for path in checkpoint.iterdir() if path.is_file()):
            key.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
        made = root / key.hexdigest()
        if not made.exists():
            # A copy shares no file with the checkpoint, whose links some tests count.
            shutil.copytree(real(checkpoint, out, **options), made)
            return out
        return Path(shutil.copytree(made, out))

    users = [module for name, module in sys.modules.items() if name.startswith("benchmarks.")]
    with pytest.MonkeyPatch.context() as patch:
        for module in users:
            if getattr(module, "exported", None) is real:
                patch.setattr(module, "exported", exported)
        yield
