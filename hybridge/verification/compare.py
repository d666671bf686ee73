"""Comparisons of an artifact's results with the reference's."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from hybridge.artifact.config import RuntimeConfig
from hybridge.verification.expected import Expected
from hybridge.verification.observation import Observation
from hybridge.verification.reference import ReferenceRun
from hybridge.verification.report import EMBEDDINGS, INPUT, Comparison
from hybridge.verification.scenarios import state_items

# The most that one rounding may change, relative to the change between two others: those with all ties swapped, or
# of a run without rounding and one with it.
_ROUNDING_FACTOR = 2.0
_Pair = tuple[str, int | None, np.ndarray, np.ndarray]


def compared(
    engine: str, observed: Observation, expected: Expected, config: RuntimeConfig, tolerance: float
) -> Iterator[Comparison]:
    """All comparisons of ``observed``.

    Those beyond ``tolerance`` also pass where ties of rounded inputs explain the difference.
    """
    found = _Compared(observed, expected.run(observed), config)
    if not found.within(tolerance):
        found = found.explained_by(expected.with_ties_swapped(observed))
    yield from found.comparisons(engine, tolerance)


def compared_on_own_inputs(
    engine: str, observed: Observation, expected: Expected, config: RuntimeConfig, tolerance: float
) -> Iterator[Comparison]:
    """All comparisons of ``observed`` with a run whose layers, head and routers get their inputs in the artifact.

    The inputs of routers are compared too. Comparisons beyond ``tolerance`` also pass where rounding the outputs of the
    reference's products to the engine's type explains the difference. None without such a run.
    """
    run = expected.with_own_inputs(observed)
    if run is None:
        return
    found = _Compared(observed, run, config)
    if not found.within(tolerance):
        found = found.explained_by(expected.with_own_inputs(observed, rounded=True))
    for comparison in found.comparisons(engine, tolerance):
        yield replace(comparison, own_inputs=True)


@dataclass(frozen=True)
class _Compared:
    """An observation beside a run. other: the same run with other rounding, None for none."""

    observed: Observation
    expected: ReferenceRun
    config: RuntimeConfig
    other: ReferenceRun | None = None

    def explained_by(self, other: ReferenceRun | None) -> _Compared:
        return replace(self, other=other)

    def within(self, tolerance: float) -> bool:
        return all(_error(pair) <= tolerance for pair in self._pairs(self.expected))

    def comparisons(self, engine: str, tolerance: float) -> Iterator[Comparison]:
        pairs = list(self._pairs(self.expected))
        others = pairs if self.other is None else list(self._pairs(self.other))
        for pair, (_, _, _, other) in zip(pairs, others, strict=True):
            item, layer, _, reference = pair
            error, explained = _error(pair), _ROUNDING_FACTOR * _error((item, layer, other, reference))
            within = error <= tolerance
            passed = within or error <= tolerance + explained
            yield Comparison(engine, self.observed.scenario, item, layer, error, passed, passed and not within)

    def _pairs(self, run: ReferenceRun) -> Iterator[_Pair]:
        return _pairs(self.observed, run, self.config)


def _error(pair: _Pair) -> float:
    item, _, found, reference = pair
    return _measure(item)(found, reference)


def _pairs(observed: Observation, expected: ReferenceRun, config: RuntimeConfig) -> Iterator[_Pair]:
    """item, absolute layer, the artifact's result, the reference's result."""
    if observed.embeddings is not None:
        yield EMBEDDINGS, None, observed.embeddings, expected.embeddings[: len(observed.embeddings)]
    for index, hidden in enumerate(observed.hidden):
        yield "hidden", index, hidden, expected.hidden[index][: len(hidden)]
    for module, reference in expected.inputs.items():
        yield INPUT, _layer_of(module), observed.inputs[module][-len(reference) :], reference
    for name, layer, item in state_items(config):
        if name in observed.states:
            reference, found = expected.states[name], observed.states[name]
            if item in ("key", "value"):
                # A sliding window's reference cache keeps only the last positions.
                found = found[:, -reference.shape[1] :]
            yield item, layer, found, reference
    yield "logits", None, observed.logits, expected.logits[-1]


def _layer_of(module: str) -> int | None:
    """The layer with ``module``; None for the head."""
    found = re.search(r"(?:^|\.)layers\.(\d+)\.", module)
    return None if found is None else int(found[1])


def _measure(item: str) -> Callable[[np.ndarray, np.ndarray], float]:
    return largest_row_error if item == EMBEDDINGS else relative_error


def relative_error(found: np.ndarray, reference: np.ndarray) -> float:
    """L2 norm of the difference over that of ``reference`` (absolute where that is 0); infinite if shapes differ."""
    if found.shape != reference.shape:
        return float("inf")
    difference = float(np.linalg.norm(found.astype(np.float64) - reference.astype(np.float64)))
    norm = float(np.linalg.norm(reference.astype(np.float64)))
    return difference / norm if norm > 0 else difference


def largest_row_error(found: np.ndarray, reference: np.ndarray) -> float:
    """The largest ``relative_error`` of a row [T, size]: one wrong row would be lost among many right ones."""
    if found.shape != reference.shape:
        return math.inf
    errors = [relative_error(row, right) for row, right in zip(found, reference, strict=True)]
    return max((math.inf if math.isnan(error) else error for error in errors), default=0.0)
