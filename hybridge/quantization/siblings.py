"""Matrices that engines join to one, because they have the same input: they share what belongs to a whole matrix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def shared_peaks(peaks: Mapping[str, float]) -> dict[str, float]:
    """The largest magnitude of each module with those that it is joined with."""
    return {module: max(peaks[each] for each in _siblings(module, peaks)) for module in peaks}


def _siblings(module: str, known: Iterable[str]) -> list[str]:
    parent, _, last = module.rpartition(".")
    group = next((group for group in _JOINED if last in group), (last,))
    modules = set(known)
    return [name for each in group if (name := f"{parent}.{each}" if parent else each) in modules]
