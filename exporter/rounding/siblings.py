"""Matrices with the same input that engines join into one, so that they must share a scheme and a global scale."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping

_JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"))
_EXPERT = re.compile(r"\.experts\.[0-9]+\.")


def shared_peaks(peaks: Mapping[str, float]) -> dict[str, float]:
    """Module to the largest magnitude in it and in the modules that it is joined with."""
    return {module: max(peaks[each] for each in siblings(module, peaks)) for module in peaks}


def groups_of(modules: Iterable[str]) -> dict[str, list[str]]:
    """Name to the modules that share a scheme: joined ones, and the same matrices of all experts of a layer."""
    groups: dict[str, list[str]] = {}
    for module in modules:
        parent, _, last = _EXPERT.sub(".experts.*.", module).rpartition(".")
        joined = next((",".join(group) for group in _JOINED if last in group), last)
        groups.setdefault(f"{parent}.{joined}" if parent else joined, []).append(module)
    return groups


def siblings(module: str, known: Container[str]) -> list[str]:
    """``module`` and the modules that it is joined with, those in ``known``."""
    parent, _, last = module.rpartition(".")
    group = next((group for group in _JOINED if last in group), (last,))
    return [name for each in group if (name := f"{parent}.{each}" if parent else each) in known]
