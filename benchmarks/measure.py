"""Repeated measurements: medians with their range, and contestants that take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Spread:
    """Median and range of ``repeats`` measurements of one quantity."""

    median: float
    min: float
    max: float
    repeats: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """The spread of at least one value."""
        numbers = [float(value) for value in values]
        return cls(median(numbers), min(numbers), max(numbers), len(numbers))

    @classmethod
    def of_ratios(cls, above: Iterable[float], below: Iterable[float]) -> Spread:
        """The spread of the quotients of values measured in the same repeat."""
        return cls.of(a / b for a, b in zip(above, below, strict=True))

    def to_json(self) -> dict[str, Any]:
        """A JSON object of the fields."""
        return asdict(self)


def take_turns(contestants: Mapping[str, Callable[[], float]], repeats: int, warmup: int = 1) -> dict[str, list[float]]:
    """What each contestant measured, by name: A B C, A B C, and so on.

    Taking turns lets a disturbance of the machine meet all of them. ``warmup`` rounds are not kept.
    """
    values: dict[str, list[float]] = {name: [] for name in contestants}
    for round_ in range(-warmup, repeats):
        for name, contestant in contestants.items():
            value = contestant()
            if round_ >= 0:
                values[name].append(value)
    return values


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
