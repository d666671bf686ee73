"""Only what opens an engine asks for the layout of an artifact or the kind of an engine."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.project.test_import_circles import ROOT

FOLDERS = ("runtime", "hybridge", "benchmarks")
LAYOUTS, KINDS = (
    {"dense", "paged"},
    {"DenseEngine", "PagedEngine", "DenseAsPaged", "PooledEngine", "PackingEngine", "ArrayEngine"},
)
OPENING = {
    "runtime/engines/dense.py",
    "runtime/engines/factory.py",
    "runtime/engines/mtp_factory.py",
    "runtime/engines/pooled.py",
    "runtime/serving/open.py",
    # verify opens dense engines itself, to see their padding.
    "hybridge/verification/layouts.py",
}
# These show the layout to the user.
SHOWING = {"hybridge/inspection/artifact.py", "hybridge/evaluation/artifact_logits.py"}


def layout_branches(tree: ast.AST) -> Iterator[str]:
    """What in a module asks for a layout (or names one in a comparison) or for the class of an engine."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "layout" and "config" in ast.unparse(node.value):
            yield "layout"
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.name in ("DENSE", "PAGED"))
        elif isinstance(node, ast.Compare | ast.MatchValue | ast.Dict):
            parts = node.keys if isinstance(node, ast.Dict) else ast.walk(node)
            constants = {each.value for each in parts if isinstance(each, ast.Constant)}
            yield from (value for value in constants if isinstance(value, str) and value in LAYOUTS)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            names = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
            yield from (name for name in names if name in KINDS or name.endswith(("PagedEngine", "DenseEngine")))


def branching_modules() -> dict[str, list[str]]:
    found = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            if not any(parent.is_symlink() for parent in path.parents):
                found[str(path.relative_to(ROOT))] = list(layout_branches(ast.parse(path.read_text(encoding="utf-8"))))
    return {name: what for name, what in found.items() if what}


def test_what_counts_as_a_branch() -> None:
    asking = ("config.layout", "x == 'dense'", "{'paged': 1}", "isinstance(e, (int, DenseAsPaged))")
    assert all(list(layout_branches(ast.parse(source))) for source in asking)
    assert list(layout_branches(ast.parse("from hybridge.artifact.paged import PAGED, ROWS"))) == ["PAGED"]
    assert not list(layout_branches(ast.parse("isinstance(e, EngineError); f(layout='dense')")))


def test_only_opening_an_engine_asks_for_the_layout() -> None:
    found = branching_modules()
    assert not {name: what for name, what in found.items() if name not in OPENING | SHOWING}
    # None of the exceptions has become unnecessary.
    assert found.keys() == OPENING | SHOWING
