"""Comparisons of an artifact's results with the reference's."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hybridge.artifact.config import RuntimeConfig
from hybridge.verification.expected import Expected
from hybridge.verification.observation import Observation
from hybridge.verification.reference import ReferenceRun
from hybridge.verification.report import EMBEDDINGS, INPUT, Comparison
from hybridge.verification.scenarios import state_items

# The most that swapping some ties of a layer may change, relative to swapping all of them.
_TIE_FACTOR = 2.0
_Pair = tuple[str, int | None, np.ndarray, np.ndarray]


def compared(
    engine: str, observed: Observation, expected: Expected, config: RuntimeConfig, tolerance: float
) -> Iterator[Comparison]:
    """All comparisons of ``observed``.

    Where one is beyond ``tolerance``, all are made with a run whose routers choose by their inputs in the artifact,
    and these inputs are compared too. Those beyond ``tolerance`` also pass where ties of rounded inputs explain the
    difference.
    """
    pairs = list(_pairs(observed, expected.run(observed), config))
    errors, routed = _errors(pairs), None
    if not _within(errors, tolerance):
        routed = expected.with_router_inputs(observed)
        if routed is not None:
            pairs = list(_pairs(observed, routed, config))
            errors = _errors(pairs)
    explained = [0.0] * len(pairs)
    if not _within(errors, tolerance):
        swapped = expected.with_ties_swapped(observed)
        if swapped is not None:
            others = (pair[3] for pair in _pairs(observed, swapped, config))
            explained = [
                _TIE_FACTOR * _measure(item)(other, reference)
                for (item, _, _, reference), other in zip(pairs, others, strict=True)
            ]
    for (item, layer, _, _), error, ties in zip(pairs, errors, explained, strict=True):
        within = error <= tolerance
        passed = within or error <= tolerance + ties
        by_ties = passed and not within
        yield Comparison(engine, observed.scenario, item, layer, error, passed, by_ties, routed=routed is not None)


def _errors(pairs: Sequence[_Pair]) -> list[float]:
    return [_measure(item)(found, reference) for item, _, found, reference in pairs]


def _within(errors: Sequence[float], tolerance: float) -> bool:
    return all(error <= tolerance for error in errors)


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
