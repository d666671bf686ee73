"""No cycles of imports between modules or sibling folders, imports for type checking included."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("artifact", "exporter", "runtime", "trt_plugins", "hybridge")
Graph = Mapping[str, set[str]]


def modules(root: Path) -> dict[str, Path]:
    """Every module of the packages under ``root`` by its dotted name below hybridge."""
    found = {}
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            if not any(parent.is_symlink() for parent in path.parents):
                parts = path.relative_to(root).with_suffix("").parts
                names = parts if parts[0] == "hybridge" else ("hybridge", *parts)
                found[".".join(names).removesuffix(".__init__")] = path
    return found


def imports(name: str, path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The modules among ``known`` that ``path`` names in an import, wherever it stands."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: -node.level + 1 or None] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                target = f"{base}.{alias.name}"
                if target in known or base in known:
                    yield target if target in known else base


@functools.cache
def module_graph(root: Path) -> dict[str, set[str]]:
    known = modules(root)
    return {name: set(imports(name, path, known)) - {name} for name, path in known.items()}


def circle(graph: Graph) -> list[str]:
    """The nodes of a cycle of ``graph``, the first one repeated at the end; [] without one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def sibling_folders(graph: Graph, package: str) -> dict[str, set[str]]:
    """What each folder of ``package`` imports of the others; files directly in it, which join them, do not count."""
    folders: dict[str, set[str]] = {}
    for name, targets in graph.items():
        for target in targets:
            first, second = (n.removeprefix(f"{package}.").split(".") for n in (name, target))
            inside = name.startswith(f"{package}.") and target.startswith(f"{package}.")
            if inside and len(first) > 1 and len(second) > 1 and first[0] != second[0]:
                folders.setdefault(first[0], set()).add(second[0])
    return folders


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circle(module_graph(ROOT)) == []


@pytest.mark.parametrize("package", ["exporter", "trt_plugins"])
def test_sibling_folders_import_one_way(package: str) -> None:
    assert circle(sibling_folders(module_graph(ROOT), f"hybridge.{package}")) == []


def test_every_kind_of_import_is_seen(tmp_path: Path) -> None:
    texts = {
        "exporter/a.py": "if TYPE_CHECKING:\n    from hybridge.exporter.deep import b\n",
        "exporter/deep/__init__.py": "",
        "exporter/deep/b.py": "def f():\n    from ..c import x\n",
        "exporter/c.py": "import hybridge.exporter.a\nfrom . import d\n",
        "exporter/d.py": "import json\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    graph = module_graph(tmp_path)
    assert graph["hybridge.exporter.c"] == {"hybridge.exporter.a", "hybridge.exporter.d"}
    found = circle(graph)
    assert set(found) == {"hybridge.exporter.a", "hybridge.exporter.deep.b", "hybridge.exporter.c"}
    assert graph[found[0]] >= {found[1]}
