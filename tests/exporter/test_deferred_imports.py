"""Deferred modules run at their first use, after their packages, and once."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import pytest

from hybridge.exporter.trace.deferred_imports import deferred_imports

NAMES = ("deferred_package", "deferred_package.inner", "deferred_package.inner.leaf")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What ran, in order. The package imports its inner one, as it does in files that import each other."""
    folder = tmp_path / "deferred_package" / "inner"
    folder.mkdir(parents=True)
    note = "import sys; sys.deferred_log.append(__name__)\n"
    (folder.parent / "__init__.py").write_text(f"{note}from deferred_package.inner import VALUE\nOUTER = VALUE + 1\n")
    (folder / "__init__.py").write_text(f"{note}VALUE = 1\n")
    (folder / "leaf.py").write_text(f"{note}from deferred_package import OUTER\nLEAF = OUTER + 1\n")
    (tmp_path / "plain_module.py").write_text(note)
    ran: list[str] = []
    monkeypatch.setattr(sys, "deferred_log", ran, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    yield ran
    assert sys.meta_path == finders
    for name in (*NAMES, "plain_module"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("use", [attrgetter("LEAF"), dir], ids=["a name", "dir"])
def test_the_first_use_runs_a_module_after_its_packages(log: list[str], use: Callable[[ModuleType], object]) -> None:
    with deferred_imports(NAMES):
        import plain_module  # type: ignore[import-not-found]  # noqa: F401
        from deferred_package.inner import leaf  # type: ignore[import-not-found]
    assert log == ["plain_module"]
    assert leaf.__name__ == NAMES[2] and not log[1:]
    use(leaf)
    assert log[1:] == list(NAMES) and leaf.LEAF == 3 and "LEAF" in dir(leaf)
    package = importlib.import_module(NAMES[0])
    assert (package.OUTER, package.inner.leaf.LEAF, len(log)) == (2, 3, 4)


def test_a_missing_name_and_a_missing_module(log: list[str]) -> None:
    with deferred_imports((*NAMES, "no_such_module")):
        import deferred_package

        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("no_such_module")
    with pytest.raises(AttributeError, match="nothing"):
        _ = deferred_package.nothing
    assert log == list(NAMES[:2])


def test_a_module_that_fails_fails_again(log: list[str], tmp_path: Path) -> None:
    (tmp_path / "deferred_package" / "inner" / "leaf.py").write_text("raise ImportError('broken')\n")
    with deferred_imports(NAMES):
        from deferred_package.inner import leaf
    for _ in range(2):
        with pytest.raises(ImportError, match="broken"):
            _ = leaf.LEAF
    assert log == list(NAMES[:2])
