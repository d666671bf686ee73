"""Markdown tables and numbers of the rendered pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; every row has as many cells as the header."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def number(value: float) -> str:
    """Three significant digits, never with an exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread_cell(spread: Mapping[str, float], scale: float = 1.0, unit: str = "") -> str:
    """Median and range of a measurement."""
    middle, low, high = (number(scale * spread[key]) for key in ("median", "min", "max"))
    return f"{middle}{unit} ({low} to {high})"
