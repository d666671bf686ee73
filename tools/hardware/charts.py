"""Charts as SVG text, for a page that needs no other file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_COLOURS = ("#1b6ca8", "#c9803a", "#5a8f5a", "#8a5aa8", "#a84b4b", "#4b9aa8", "#7a7a3a", "#555555")
_WIDTH, _LABEL, _BAR, _RIGHT = 860, 210, 15, 90
_PLOT_HEIGHT, _LEFT, _BOTTOM = 260, 60, 34


def bars(title: str, rows: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Horizontal bars: a group for each of ``rows`` (label, values by series); empty where there are no values."""
    series = list(dict.fromkeys(name for _, values in rows for name in values))
    most = max((value for _, values in rows for value in values.values()), default=0.0)
    if most <= 0:
        return ""
    parts, y = [_legend(series)], 24
    for label, values in rows:
        height = _BAR * max(1, len(values))
        parts.append(_text(_LABEL - 8, y + height / 2 + 4, label, "end"))
        for name, value in values.items():
            width = (_WIDTH - _LABEL - _RIGHT) * value / most
            colour = _COLOURS[series.index(name) % len(_COLOURS)]
            parts.append(f'<rect x="{_LABEL}" y="{y}" width="{width:.1f}" height="{_BAR - 3}" fill="{colour}"/>')
            parts.append(
                _text(_LABEL + width + 5, y + _BAR - 4, f"{value:,.0f}" if value >= 100 else f"{value:.3g}", "start")
            )
            y += _BAR
        y += 9
    return _figure(title, y, parts)


def lines(title: str, series: Mapping[str, Mapping[int, float]], limit: float | None = None) -> str:
    """Curves over two logarithmic axes, with a dashed line at ``limit``; empty where there are no positive values."""
    points = {n: [(x, y) for x, y in sorted(each.items()) if x > 0 and y > 0] for n, each in series.items()}
    points = {name: each for name, each in points.items() if each}
    if not points:
        return ""
    xs = [x for each in points.values() for x, _ in each]
    ys = [y for each in points.values() for _, y in each] + ([limit] if limit else [])
    x_range, y_range = _decades(xs), _decades(ys)
    height = _PLOT_HEIGHT + _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x_range[0]) / (x_range[1] - x_range[0])
        up = (math.log10(y) - y_range[0]) / (y_range[1] - y_range[0])
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), 24 + (1 - up) * (_PLOT_HEIGHT - 24)

    parts = [_legend(list(points))]
    for decade in range(x_range[0], x_range[1] + 1):
        x, _ = place(10.0**decade, 10.0 ** y_range[0])
        parts += [_rule(x, 24, x, _PLOT_HEIGHT), _text(x, _PLOT_HEIGHT + 16, f"{10**decade:g}", "middle")]
    for decade in range(y_range[0], y_range[1] + 1):
        _, y = place(10.0 ** x_range[0], 10.0**decade)
        parts += [_rule(_LEFT, y, _WIDTH - _RIGHT, y), _text(_LEFT - 6, y + 4, f"1e{decade}", "end")]
    for index, each in enumerate(points.values()):
        path = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in each)
        colour = _COLOURS[index % len(_COLOURS)]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    if limit:
        _, y = place(10.0 ** x_range[0], limit)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#a00" stroke-dasharray="5 4"/>')
    return _figure(title, height, parts)


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low = math.floor(math.log10(min(values)))
    return low, max(low + 1, math.ceil(math.log10(max(values))))


def _legend(series: Sequence[str]) -> str:
    parts, x = [], _LEFT
    for index, name in enumerate(series):
        parts.append(f'<rect x="{x}" y="4" width="10" height="10" fill="{_COLOURS[index % len(_COLOURS)]}"/>')
        parts.append(_text(x + 14, 13, name, "start"))
        x += 24 + 7 * len(name)
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="#ddd"/>'


def _figure(title: str, height: float, parts: Sequence[str]) -> str:
    svg = f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"
