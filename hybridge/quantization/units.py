"""The parts of a checkpoint that are quantised one after another: decoder layers, and the matrices outside of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_LAYER = re.compile(r"(?:^|\.)layers\.([0-9]+)\.")


@dataclass(frozen=True)
class Unit:
    """The quantised ``modules`` of the decoder layer ``layer``; None: those outside of layers."""

    layer: int | None
    modules: tuple[str, ...]

    @property
    def name(self) -> str:
        return "other matrices" if self.layer is None else f"layer {self.layer}"


def units_of(modules: Iterable[str]) -> list[Unit]:
    """``modules`` by layer, in the order of layers; those outside come last."""
    layers: dict[int | None, list[str]] = {}
    for module in modules:
        match = _LAYER.search(module)
        layers.setdefault(None if match is None else int(match[1]), []).append(module)
    numbers = sorted(number for number in layers if number is not None)
    return [Unit(number, tuple(layers[number])) for number in (*numbers, *([None] if None in layers else []))]
