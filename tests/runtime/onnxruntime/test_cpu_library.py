"""The library of CPU kernels is compiled once, and its absence is no error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime import cpu_library as module
from hybridge.runtime.engines.onnxruntime import linear_form
from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN, CpuLibrary, cpu_library, library_key
from hybridge.runtime.engines.onnxruntime.graph_cache import GraphCache
from hybridge.runtime.engines.onnxruntime.session_graph import DenseGraph, GraphWeight, SessionGraph, StoredTensor


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Results are found again in each test, with an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    for found in (cpu_library, library_key):
        found.cache_clear()
    yield
    for found in (cpu_library, library_key):
        found.cache_clear()


def compiler(folder: Path, script: str) -> str:
    """An executable that runs ``script``."""
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


# Writes what it is asked for, and counts its calls.
_WRITES = 'while [ "$1" != -o ]; do shift; done; echo made > "$2"; echo call >> "$0.calls"'


def test_it_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_compiler", lambda: compiler(tmp_path, _WRITES))
    path = cpu_library().path
    assert path is not None and path.read_text() == "made\n" and path.stat().st_mode & 0o777 == 0o700
    calls = (tmp_path / "compiler.calls").read_text()
    cpu_library.cache_clear()
    assert cpu_library().path == path and (tmp_path / "compiler.calls").read_text() == calls
    assert {found.name for found in path.parent.iterdir()} == {"lock", path.name}


def test_without_a_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_compiler", lambda: None)
    assert library_key() == ""
    assert cpu_library().path is None and "expected a C++ compiler" in cpu_library().reason


def test_a_compiler_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_compiler", lambda: compiler(tmp_path, "echo no such flag >&2; exit 1"))
    found = cpu_library()
    assert found.path is None and found.reason.endswith("failed: no such flag")
    assert [path.name for path in (tmp_path / "caches" / "hybridge" / "cpu").iterdir()] == ["lock"]


def test_after_a_failure_a_stored_graph_that_needs_it_is_neither_used_nor_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("model.onnx", "config.json"):
        (tmp_path / name).write_bytes(b"{}")
    compiling = compiler(tmp_path, _WRITES)
    monkeypatch.setattr(module, "_compiler", lambda: compiling)
    cache = GraphCache(tmp_path / "graphs")
    fast, slow = (DenseGraph(model, (), frozenset(), frozenset(), {}) for model in (CPU_DOMAIN.encode(), b"standard"))

    def found(rewritten: DenseGraph) -> DenseGraph:
        """What a new process gets that would rewrite the graph as ``rewritten``."""
        cpu_library.cache_clear()
        return cache.get(tmp_path, "GENERAL", lambda: rewritten)

    assert found(fast) is fast
    path = cpu_library().path
    assert path is not None
    path.unlink()
    compiler(tmp_path, "exit 1")
    assert found(slow) is slow
    compiler(tmp_path, _WRITES)
    assert found(slow) == fast


@pytest.mark.filterwarnings("ignore:.*only you can write:RuntimeWarning")
def test_a_folder_that_others_can_write_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_compiler", lambda: compiler(tmp_path, _WRITES))
    folder = tmp_path / "caches" / "hybridge" / "cpu"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert cpu_library().path is None and not (tmp_path / "compiler.calls").exists()


def test_widened_weights_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def notes(*shape: int) -> tuple[str, ...]:
        weight = GraphWeight("w", (StoredTensor("file", 0, DType.BFLOAT16, shape),), None, False, shared=True)
        return linear_form.library_notes(SessionGraph(b"", (weight,), frozenset(), frozenset()))

    monkeypatch.setattr(linear_form, "cpu_library", lambda: CpuLibrary(None, "no compiler"))
    expected = "large weights of 8 or 16 bits are widened to float32, which takes more memory: no compiler"
    assert notes(1024, 64) == (expected,) and notes(1023, 64) == notes(1 << 20) == ()
