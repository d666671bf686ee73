"""The result of a verification: every comparison, the first place that differs, tables for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

EMBEDDINGS, INPUT, UNCHANGED = "embeddings", "input", "unchanged"
PREDICTION_HEAD, HEAD_INPUT = "prediction head", "head input"
# Columns of the tables, and what is compared in each. All fit into 80 characters.
COLUMNS = {
    "hidden": (EMBEDDINGS, INPUT, "hidden"),
    "keys": ("key",),
    "values": ("value",),
    "conv": ("conv_state",),
    "state": ("recurrent_state",),
    "logits": ("logits",),
}


@dataclass(frozen=True)
class Comparison:
    """One tensor compared: relative L2 ``error`` of ``engine`` in ``scenario``.

    ``item``: "embeddings", "input" (of a router, or of a product that rounds it), "hidden", "key", "value",
    "conv_state", "recurrent_state", "logits" or "unchanged".
    ``layer`` is absolute, None for embeddings, logits and whole pools. ``by_rounding``: passed beyond the tolerance,
    as other rounding changes the reference by about as much: of inputs halfway between two numbers, or of the outputs
    of products. ``in_head``: of the prediction head, and ``layer`` one of its layers. ``own_inputs``: the reference's
    layers, head and routers got their inputs in the artifact, because a result of the whole model was beyond the
    tolerance.
    """

    engine: str
    scenario: str
    item: str
    layer: int | None
    error: float
    passed: bool
    by_rounding: bool = False
    in_head: bool = False
    own_inputs: bool = False


@dataclass(frozen=True)
class VerifyReport:
    """All comparisons of one artifact with its checkpoint.

    engines: those that ran; computed_types: the type in which each computed. dtype: the artifact's compute type.
    forced_inputs: the reference computed layers, the head and products that round from their inputs in the artifact.
    head_layer_types: kinds of the layers of the prediction head, empty where none was compared.
    long_windows, not_crossed: windows that a row with filled caches crossed; chunks and windows that no row crossed.
    """

    model_type: str
    engines: tuple[str, ...]
    computed_types: tuple[str, ...]
    dtype: str
    reference: str
    tolerance: float
    prompt_lengths: tuple[int, ...]
    decode_steps: int
    long_windows: tuple[str, ...]
    not_crossed: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    layer_types: tuple[str, ...]
    notes: tuple[str, ...] = ()
    forced_inputs: bool = False
    head_layer_types: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return all(c.passed for c in self.comparisons)

    @property
    def first_failing_layer(self) -> int | None:
        """The model's first layer whose output or state differs; None when all agree or only the logits differ."""
        return _first_layer(c for c in self.comparisons if not c.in_head)

    @property
    def failing_place(self) -> str | None:
        """The first place that differs; None where all agree.

        It is "embedding", "layer N", "head" (of the model), "prediction head" or a scenario.
        """
        differing = [c for c in self.comparisons if not c.passed]
        failed = [c for c in differing if not c.in_head]
        if not failed:
            return PREDICTION_HEAD if differing else None
        if any(c.item == EMBEDDINGS for c in failed):
            return "embedding"
        if self.first_failing_layer is not None:
            return f"layer {self.first_failing_layer}"
        return "head" if any(c.item in ("logits", INPUT) for c in failed) else failed[0].scenario

    def verdict(self) -> str:
        """One sentence."""
        place, layer = self.failing_place, self.first_failing_layer
        if place is None:
            count, lengths = len(self.comparisons), _listed([str(n) for n in self.prompt_lengths])
            long = f"a row across {_listed(self.long_windows)}, " if self.long_windows else ""
            missed = f"; no row crossed {_listed(self.not_crossed)}" if self.not_crossed else ""
            return (
                f"verified: {count} comparisons within {self.tolerance:g}{self._rounding()}{self._own_inputs()}, "
                f"prompts of {lengths} tokens, "
                f"{long}{self._computed()}{missed}{self._forced()}{self._with_head()}"
            )
        if place == "head":
            return "FAILED: all layers agree, the logits differ: the head (final norm or output projection)"
        if place == f"layer {layer}":
            return f"FAILED: the first layer that differs is {place} ({self.layer_types[layer or 0]})"
        if place == "embedding":
            return "FAILED: the first difference is in the embedding"
        if place == PREDICTION_HEAD:
            return f"FAILED: the model agrees, its prediction head differs{self._place_in_head()}"
        return f"FAILED: {place}: changed by a step of other rows"

    def _rounding(self) -> str:
        count = sum(c.by_rounding for c in self.comparisons)
        return f" ({count} of them apart from what rounding changes in the reference)" if count else ""

    def _own_inputs(self) -> str:
        count = sum(c.own_inputs for c in self.comparisons)
        return f" ({count} of them layer by layer, for the artifact's own inputs)" if count else ""

    def _with_head(self) -> str:
        return "; prediction head included" if self.head_layer_types else ""

    def _place_in_head(self) -> str:
        failed = [c for c in self.comparisons if c.in_head and not c.passed]
        layer = _first_layer(failed)
        if any(c.item == EMBEDDINGS for c in failed):
            return " in the input of its first layer"
        return "" if layer is None else f", first in its layer {layer} ({self.head_layer_types[layer]})"

    def _forced(self) -> str:
        return "; layers and rounded products compared for the artifact's own inputs" if self.forced_inputs else ""

    def _computed(self) -> str:
        """The type in which each engine computed, and whether none is the artifact's."""
        types = dict.fromkeys(self.computed_types)
        engines = {
            t: _listed([e for e, c in zip(self.engines, self.computed_types, strict=True) if c == t]) for t in types
        }
        text = _listed([f"computed in {t} by {names}" for t, names in engines.items()])
        return text if self.dtype in types else f"{text}, not in the artifact's {self.dtype}"

    def to_json(self) -> dict[str, Any]:
        """A JSON object with the verdict and every comparison."""
        document = asdict(self)
        for comparison in document["comparisons"]:
            # JSON has no infinity or NaN: both become null.
            comparison["error"] = comparison["error"] if math.isfinite(comparison["error"]) else None
        verdict = {
            "passed": self.passed,
            "verdict": self.verdict(),
            "first_failing_layer": self.first_failing_layer,
            "failing_place": self.failing_place,
        }
        return verdict | document

    def render(self) -> Group:
        """Tables for a terminal of 80 columns: the worst error of every engine's scenarios, and of every layer."""
        lines: list[Any] = []
        for engine, dtype in zip(self.engines, self.computed_types, strict=True):
            own = [c for c in self.comparisons if c.engine == engine]
            lines.append(Text(f"{engine} in {dtype}: largest relative error (tolerance {self.tolerance:g})"))
            lines.append(_table("scenario", _worst(own, lambda c: c.scenario)))
            lines += [Text(f"  {line}", style=style) for line, style in _unchanged(own).items()]
            lines.append(Text())
        layers = _worst(self.comparisons, self._layer_of)
        lines += [Text("largest relative error by layer"), _table("layer", layers), Text()]
        lines += [Text(f"note: {note}") for note in self.notes]
        lines.append(Text(self.verdict(), style="bold green" if self.passed else "bold red"))
        return Group(*lines)

    def _layer_of(self, comparison: Comparison) -> str | None:
        if comparison.item == EMBEDDINGS:
            return HEAD_INPUT if comparison.in_head else "embedding"
        if comparison.layer is None:
            return None
        types = self.head_layer_types if comparison.in_head else self.layer_types
        return f"{'head ' * comparison.in_head}{comparison.layer} {types[comparison.layer]}"


def _first_layer(comparisons: Iterable[Comparison]) -> int | None:
    """The first layer of ``comparisons`` that failed."""
    return min((c.layer for c in comparisons if not c.passed and c.layer is not None), default=None)


def _listed(names: Iterable[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


Errors = Mapping[str, Mapping[str, Comparison]]


def _worst(comparisons: Iterable[Comparison], key: Callable[[Comparison], str | None]) -> Errors:
    """row -> column -> the comparison with the largest error, of those that failed if there are any."""
    columns = {item: column for column, items in COLUMNS.items() for item in items}
    rows: dict[str, dict[str, Comparison]] = {}
    for comparison in comparisons:
        row, column = key(comparison), columns.get(comparison.item)
        if row is not None and column is not None:
            errors = rows.setdefault(row, {})
            errors[column] = _worse(errors.get(column, comparison), comparison)
    return rows


def _unchanged(comparisons: Iterable[Comparison]) -> dict[str, str]:
    """A line for each scenario in which states must not change, and its style."""
    unchanged: dict[str, bool] = {}
    for c in comparisons:
        if c.item == UNCHANGED:
            unchanged[c.scenario] = unchanged.get(c.scenario, True) and c.passed
    return {f"{name}: {'unchanged' if same else 'CHANGED'}": "" if same else "red" for name, same in unchanged.items()}


def _worse(a: Comparison, b: Comparison) -> Comparison:
    """A failed one rather than one that passed, else that with the larger error; NaN counts as largest."""
    if a.passed != b.passed:
        return a if b.passed else b
    return b if not b.error <= a.error else a


def _table(first: str, rows: Errors) -> Table:
    columns = [column for column in COLUMNS if any(column in row for row in rows.values())]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(f"  {first}", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", min_width=7, no_wrap=True)
    for name, errors in rows.items():
        cells = []
        for column in columns:
            worst = errors.get(column)
            bad = worst is not None and not worst.passed
            cells.append(Text("" if worst is None else f"{worst.error:.1e}", style="red" if bad else ""))
        table.add_row(f"  {name}", *cells)
    return table
