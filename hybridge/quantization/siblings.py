"""Matrices that engines join to one, because they have the same input: they share what belongs to a whole matrix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_EXPERT = re.compile(r"\.experts\.[0-9]+\.")


def shared_peaks(peaks: Mapping[str, float]) -> dict[str, float]:
    """The largest magnitude of each module with those that it is joined with."""
    return {module: max(peaks[each] for each in _siblings(module, peaks)) for module in peaks}


def groups_of(modules: Iterable[str]) -> dict[str, list[str]]:
    """Modules that get one scheme, by a name: those that are joined, and all experts of a layer with them."""
    groups: dict[str, list[str]] = {}
    for module in modules:
        parent, _, last = _EXPERT.sub(".experts.*.", module).rpartition(".")
        joined = next((",".join(group) for group in _JOINED if last in group), last)
        groups.setdefault(f"{parent}.{joined}" if parent else joined, []).append(module)
    return groups


def _siblings(module: str, known: Iterable[str]) -> list[str]:
    parent, _, last = module.rpartition(".")
    group = next((group for group in _JOINED if last in group), (last,))
    modules = set(known)
    return [name for each in group if (name := f"{parent}.{each}" if parent else each) in modules]
