"""Identifiers of shipped code use the words of docs/reference/glossary.md and none that were retired."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from tests.project.pages import PAGES
from tests.project.test_wheel import ROOT

PACKAGES = ("hybridge", "exporter", "runtime", "trt_plugins", "artifact")
BETTER = {
    "asked": "requested, or submitted",
    "candidate": "draft token",
    "candidates": "draft tokens",
    "chances": "reuse rates",
    "drawn": "sampled",
    "draws": "samples",
    "forgone": "skipped",
    "ghost": "evicted prefix",
    "ghosts": "evicted prefixes",
    "guess": "draft token",
    "guesses": "draft tokens",
    "held": "deferred, or stored inputs",
    "kept": "stored, or snapshot",
    "letgo": "release",
    "nobody": "none",
    "ownsteps": "autoregressive steps",
    "parted": "branch point",
    "places": "positions, slots or cache",
    "regret": "eviction history",
    "regrets": "eviction history",
    "stateroom": "state slots",
    "took": "record, or acquired",
    "untold": "pending",
    "wanted": "requested",
    "worth": "value",
    "worths": "values",
}


# In comments, docstrings and messages of shipped code and in pages.
PHRASES = re.compile(
    r"\b(nobody|somebody|anybody|whoever|meanwhile|for ever|once more|in the place of|for want of|to be had|but for|"
    r"one after the other|takes? no part|under way)\b",
    re.IGNORECASE,
)


def words(name: str) -> set[str]:
    """The lower-case words of an identifier, and each two neighbours joined: two_words -> two, words, twowords."""
    parts = [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    return {*parts, *(first + second for first, second in itertools.pairwise(parts))}


def defined_names(tree: ast.AST) -> Iterator[str]:
    """What a module names: functions, classes, parameters, variables and attributes that it assigns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def retired_names() -> frozenset[str]:
    """All names of shipped code, module names included, that have a retired word."""
    names: set[str] = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if not any((ROOT / folder).is_symlink() for folder in path.relative_to(ROOT).parents):
                names |= {path.stem, *defined_names(ast.parse(path.read_text(encoding="utf-8")))}
    return frozenset(name for name in names if words(name) & BETTER.keys())


def test_words_of_an_identifier() -> None:
    assert words("MTPHead_ofRows2") == {"mtp", "head", "of", "rows", "mtphead", "headof", "ofrows"}
    assert set(defined_names(ast.parse("def f(a, *, b): c, d.e = a"))) == {"f", "a", "b", "c", "e"}


def test_no_name_has_a_retired_word() -> None:
    found = {name: [BETTER[word] for word in words(name) & BETTER.keys()] for name in retired_names()}
    assert not found, "retired words, with what to say instead"


def test_no_text_has_a_retired_phrase() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    pages = [ROOT / page for page in PAGES]
    found = {
        str(path.relative_to(ROOT)): match[0]
        for path in [*files, *pages, *(ROOT / "plugin_src").rglob("*.cu*")]
        if (match := PHRASES.search(path.read_text(encoding="utf-8")))
    }
    assert not found, "say it in plain words"
