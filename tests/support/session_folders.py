"""Folders that the worker processes of a test session share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

CACHES = "XDG_CACHE_HOME"


def session_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """The folder ``name`` among the session's temporary ones."""
    base = factory.getbasetemp()
    # A worker's base folder is one of several in the session's.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder


def copy_cpu_library(caches: Path) -> None:
    """Copy the session's library of CPU kernels to ``caches``, another folder for the user's caches.

    It takes 10 seconds to compile.
    """
    # Imported here because every test process loads this file.
    from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library

    library = cpu_library().path
    if library is not None:
        _copy(library, caches)


def _copy(library: Path, caches: Path) -> None:
    """Copy ``library`` to the cache folder ``caches``; other processes may do the same."""
    target = caches / "hybridge" / "cpu"
    target.mkdir(parents=True, mode=0o700, exist_ok=True)
    partial = target / f"{library.name}.{os.getpid()}"
    shutil.copy2(library, partial)
    os.replace(partial, target / library.name)


def _built_library() -> Path | None:
    """The library of these sources in the user's own caches, if some command has compiled it there."""
    try:
        from hybridge.artifact.user_cache import is_private, user_cache_folder
        from hybridge.runtime.engines.onnxruntime.cpu_library import library_key

        found = user_cache_folder("cpu") / f"{library_key()}.so"
        return found if found.is_file() and is_private(found.parent, "its library is not used") else None
    except (ImportError, OSError, RuntimeError):  # no ONNX Runtime, or no such folder
        return None


@pytest.fixture(scope="session", autouse=True)
def user_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's cache folder is one of the session; XDG_CACHE_HOME names another, which keeps compiled kernels.

    Of the user's own caches it gets a copy of the library of CPU kernels.
    """
    if CACHES in os.environ:
        yield
        return
    caches, library = session_folder(tmp_path_factory, "caches"), _built_library()
    if library is not None:
        _copy(library, caches)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHES, str(caches))
        yield
