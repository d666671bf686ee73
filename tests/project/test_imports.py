"""Imports go one way, hybridge -> {exporter, runtime} -> trt_plugins -> artifact; the device side needs no torch."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Container, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What each folder at the top may import of the others; all but hybridge itself are imported as hybridge.NAME.
ALLOWED = {
    "hybridge": {"exporter", "runtime", "trt_plugins", "artifact"},
    "exporter": {"trt_plugins", "artifact"},
    "runtime": {"trt_plugins", "artifact"},
    "trt_plugins": {"artifact"},
    "artifact": set(),
}
# Folders that run on the device, where neither torch nor transformers is installed: no import of them at all.
TORCH_FREE = (
    "artifact",
    "runtime",
    "trt_plugins/build",
    "trt_plugins/kernels",
    "trt_plugins/plugins",
    "hybridge/cli",
    "hybridge/inspection",
)
# Files that are the torch side of their package (an engine that computes with torch, later).
TORCH_SIDE = ("runtime/engines/torch", "runtime/engines/tensorrt_network")
TORCH = {"torch", "transformers"}


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@cache
def imported_modules(path: Path, top_level_only: bool = False) -> tuple[tuple[int, str], ...]:
    """(line, dotted name) of every import in ``path``; those under ``if TYPE_CHECKING`` count only for direction."""
    return tuple(_imports(path, top_level_only))


def _imports(path: Path, top_level_only: bool) -> Iterator[tuple[int, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    nodes = _module_level(tree.body) if top_level_only else ast.walk(tree)
    package = path.relative_to(ROOT).parts[:-1]
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            name = ".".join(part for part in (base, node.module or "") if part)
            yield node.lineno, name
            if not node.module:
                yield from ((node.lineno, f"{name}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _is_import_call(node):
            yield node.lineno, str(node.args[0].value)  # type: ignore[attr-defined]


def _module_level(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Statements that run when the module is imported."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _module_level(node.orelse)
            continue
        yield node
        for name in ("body", "orelse", "finalbody"):
            children = getattr(node, name, None)
            if isinstance(children, list):
                yield from _module_level(children)
        for handler in getattr(node, "handlers", []):
            yield from _module_level(handler.body)


def _is_import_call(node: ast.Call) -> bool:
    name = ast.unparse(node.func).split(".")[-1]
    first = node.args[0] if node.args else None
    return name in {"import_module", "__import__"} and isinstance(first, ast.Constant) and isinstance(first.value, str)


def top_folder(name: str) -> str:
    """The top folder that the module ``name`` lies in: "runtime" for hybridge.runtime.llm and for runtime.llm."""
    first, *rest = name.split(".")
    return rest[0] if first == "hybridge" and rest and rest[0] in ALLOWED else first


def test_top_folders_are_imported_under_hybridge() -> None:
    """``import runtime`` would find a user's own runtime.py first."""
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for folder in (*ALLOWED, "tests", "tools", "benchmarks")
        for path in sources(folder)
        for line, name in imported_modules(path)
        if name.split(".")[0] in set(ALLOWED) - {"hybridge"} and not is_relative(path, line)
    ]
    assert not found, "\n".join(found)


def is_relative(path: Path, line: int) -> bool:
    return path.read_text(encoding="utf-8").splitlines()[line - 1].lstrip().startswith("from .")


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_packages_import_only_what_is_below_them(package: str) -> None:
    forbidden = set(ALLOWED) - ALLOWED[package] - {package} | {"tests", "tools", "benchmarks"}
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(package)
        for line, name in imported_modules(path)
        if top_folder(name) in forbidden
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", ["runtime"])
def test_no_modules_import_each_other(package: str) -> None:
    """Not over others either, nor under ``if TYPE_CHECKING``."""
    modules = {module_name(path): path for path in sources(package)}
    found = circle({name: imports_among(path, modules) for name, path in modules.items()})
    assert not found, " -> ".join(found)


def test_a_circle_is_found() -> None:
    graph = {"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": {"e"}, "e": set(), "f": {"e"}}
    assert circle(graph) == []
    assert circle({**graph, "e": {"b"}}) == ["b", "d", "e", "b"]
    assert circle({"a": {"a"}}) == ["a", "a"]


def module_name(path: Path) -> str:
    return ".".join(("hybridge", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def imports_among(path: Path, modules: Container[str]) -> set[str]:
    """Those of ``modules`` that ``path`` imports; ``from package import module`` imports the module alone."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else node.module for name in names}
    found |= {name for line, name in imported_modules(path) if not is_from(path, line)}
    return {name for name in found if name in modules}


def is_from(path: Path, line: int) -> bool:
    return path.read_text(encoding="utf-8").splitlines()[line - 1].lstrip().startswith("from ")


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """A cycle of imports; empty when there is none."""
    done: set[str] = set()

    def search(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph[name]):
            if found := search(other, [*way, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := search(name, []))), [])


@pytest.mark.parametrize("folder", TORCH_FREE)
def test_device_side_never_imports_torch(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(folder)
        if not path.relative_to(ROOT).as_posix().startswith(TORCH_SIDE)
        for line, name in imported_modules(path)
        if name.split(".")[0] in TORCH
    ]
    assert not found, "\n".join(found)


def test_trt_plugins_imports_torch_only_in_its_torch_side() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources("trt_plugins")
        if path.relative_to(ROOT / "trt_plugins").parts[0] not in {"torch_ops", "reference"}
        for line, name in imported_modules(path, top_level_only=True)
        if name.split(".")[0] in TORCH
    ]
    assert not found, "\n".join(found)


def test_command_line_starts_without_heavy_imports() -> None:
    heavy = TORCH | {"onnx", "onnx_ir", "onnxruntime", "numpy", "matplotlib", "tensorrt_rtx", "tensorrt"}
    loaded = modules_loaded_by("import hybridge, hybridge.cli.main")
    assert not heavy & loaded


def test_relative_and_lazy_imports_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "pkg" / "sub"
    folder.mkdir(parents=True)
    text = (
        "from ..other import x\nfrom . import near\nif TYPE_CHECKING:\n    import torch\n"
        "def f():\n    import numpy\n    importlib.import_module('onnx')\n"
        "try:\n    import json\nexcept E:\n    import csv\n"
    )
    (folder / "m.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    everything = {name for _, name in imported_modules(folder / "m.py")}
    assert everything >= {"pkg.other", "pkg.sub.near", "torch", "numpy", "onnx", "json", "csv"}
    at_import = {name for _, name in imported_modules(folder / "m.py", top_level_only=True)}
    assert at_import >= {"pkg.other", "json", "csv"} and not at_import & {"torch", "numpy", "onnx"}


def modules_loaded_by(code: str) -> set[str]:
    """Top-level modules in sys.modules after ``code`` ran in a fresh interpreter without torch and transformers."""
    result = run_without_torch(f"{code}\nprint(*{{name.split('.')[0] for name in sys.modules}})")
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def run_without_torch(code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter in which importing torch or transformers fails as if not installed."""
    blocker = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {sorted(TORCH)!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", blocker + code], capture_output=True, text=True, timeout=120, env=environment
    )


def test_runtime_and_build_import_without_torch() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for folder in ("artifact", "runtime", "trt_plugins/build", "hybridge/cli", "hybridge/inspection")
        for path in sources(folder)
        if not path.relative_to(ROOT).as_posix().startswith(TORCH_SIDE)
    ]
    names = [name if name.startswith("hybridge.") else f"hybridge.{name}" for name in modules]
    # TensorRT is optional: its absence is an error sentence, but never an import of torch.
    code = f"import importlib\nfor name in {names!r}:\n    importlib.import_module(name)"
    result = run_without_torch(code)
    assert result.returncode == 0, result.stderr


def test_help_works_without_torch() -> None:
    result = run_without_torch("sys.argv = ['hybridge', '--help']\nfrom hybridge.cli.main import main\nmain()")
    assert result.returncode == 0, result.stderr
    assert "export" in result.stdout and "build-engine" in result.stdout
