"""The outcome of a verification: every comparison, the first layer that differs, a table for people."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Comparison:
    """One tensor compared: relative L2 ``error`` of ``engine`` in ``scenario``; ``layer`` is absolute, None for logits.

    ``item``: "logits", "hidden", "key", "value", "conv_state", "recurrent_state" or "unchanged".
    """

    engine: str
    scenario: str
    item: str
    layer: int | None
    error: float
    passed: bool


@dataclass(frozen=True)
class VerifyReport:
    """All comparisons of one artifact with its checkpoint; ``engines`` are those that ran."""

    model_type: str
    engines: tuple[str, ...]
    reference: str
    tolerance: float
    comparisons: tuple[Comparison, ...]
    layer_types: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return all(c.passed for c in self.comparisons)

    @property
    def first_failing_layer(self) -> int | None:
        """The first layer whose output or state differs; None when all agree or only the logits differ."""
        return min((c.layer for c in self.comparisons if not c.passed and c.layer is not None), default=None)

    def verdict(self) -> str:
        """One sentence."""
        if self.passed:
            engines = " and ".join(self.engines)
            return f"verified: {len(self.comparisons)} comparisons within {self.tolerance:g} ({engines})"
        layer = self.first_failing_layer
        if layer is None:
            return "FAILED: all layers agree, the logits differ (final norm or output projection)"
        return f"FAILED: the first layer that differs is layer {layer} ({self.layer_types[layer]})"

    def to_json(self) -> dict[str, Any]:
        """A JSON object with the verdict and every comparison."""
        document = asdict(self)
        for comparison in document["comparisons"]:
            # JSON has no infinity or NaN; null is an error that has no size.
            comparison["error"] = comparison["error"] if math.isfinite(comparison["error"]) else None
        verdict = {"passed": self.passed, "verdict": self.verdict(), "first_failing_layer": self.first_failing_layer}
        return verdict | document

    def render(self) -> Group:
        """Tables for a terminal: the worst error of every scenario, and of every layer."""
        lines: list[Any] = [_table("scenario", self._worst(lambda c: f"{c.scenario} ({c.engine})"), self.tolerance)]
        layers = self._worst(lambda c: None if c.layer is None else f"{c.layer} {self.layer_types[c.layer]}")
        lines.append(_table("layer", layers, self.tolerance))
        lines += [Text(f"note: {note}") for note in self.notes]
        lines.append(Text(self.verdict(), style="bold green" if self.passed else "bold red"))
        return Group(*lines)

    def _worst(self, key: Any) -> dict[str, dict[str, float]]:
        """row -> item -> largest error."""
        rows: dict[str, dict[str, float]] = {}
        for comparison in self.comparisons:
            row = key(comparison)
            if row is not None:
                items = rows.setdefault(row, {})
                items[comparison.item] = _larger(items.get(comparison.item, 0.0), comparison.error)
        return rows


def _larger(a: float, b: float) -> float:
    """The larger of two errors; NaN counts as largest."""
    return b if not b <= a else a


def _table(first: str, rows: dict[str, dict[str, float]], tolerance: float) -> Table:
    items = list(dict.fromkeys(item for row in rows.values() for item in row))
    table = Table(title=f"largest relative error by {first} (tolerance {tolerance:g})", title_justify="left")
    table.add_column(first)
    for item in items:
        table.add_column(item, justify="right")
    for name, errors in rows.items():
        cells = []
        for item in items:
            error = errors.get(item)
            bad = error is not None and not error <= tolerance
            cells.append(Text("" if error is None else f"{error:.1e}", style="red" if bad else ""))
        table.add_row(name, *cells)
    return table
