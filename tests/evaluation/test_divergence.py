"""Statistics of two models' logits against sums in exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError
from hybridge.evaluation import divergence
from hybridge.evaluation.divergence import Divergence


def softmax(row: np.ndarray) -> list[Fraction]:
    """Of one row, with exact sums of exp."""
    peak = max(row.tolist())
    terms = [Fraction(math.exp(value - peak)) for value in row.tolist()]
    return [term / sum(terms) for term in terms]


def expected(reference: np.ndarray, other: np.ndarray) -> list[float]:
    """KL divergence of each row."""
    found = []
    for one, two in zip(reference, other, strict=True):
        terms = [float(p) * math.log(p / q) for p, q in zip(softmax(one), softmax(two), strict=True) if p]
        found.append(math.fsum(terms))
    return found


def test_mean_quantile_and_perplexity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "_BLOCK", 3 * 11)  # blocks of 3 rows, the last one of 1
    rng = np.random.default_rng(0)
    reference = rng.normal(0, 3, (31, 11)).astype(np.float32)
    other = (reference + rng.normal(0, 0.3, reference.shape)).astype(np.float32)
    targets = rng.integers(0, 11, 31)
    found = Divergence()
    for start in (0, 7, 30):
        stop = {0: 7, 7: 30, 30: 31}[start]
        found.add(reference[start:stop], other[start:stop], targets[start:stop])
    values = sorted(expected(reference, other))
    assert found.positions == 31
    assert found.mean == pytest.approx(math.fsum(values) / 31, rel=1e-12)
    assert found.quantile(0.999) == pytest.approx(0.03 * values[-2] + 0.97 * values[-1], rel=1e-9)
    assert found.quantile(1) == pytest.approx(values[-1]) and found.quantile(0) == pytest.approx(values[0])
    for logits, perplexity in zip((reference, other), found.perplexities, strict=True):
        losses = [-math.log(softmax(row)[target]) for row, target in zip(logits, targets, strict=True)]
        assert perplexity == pytest.approx(math.exp(math.fsum(losses) / 31), rel=1e-12)
    assert found.same_top == float((reference.argmax(1) == other.argmax(1)).mean()) < 1


def test_extreme_logits() -> None:
    found = Divergence()
    certain = np.array([[1e4, -1e4, 0], [-1e4, 1e4, 0]], np.float32)
    found.add(certain, certain, np.array([0, 1]))
    assert (found.mean, found.quantile(0.999), found.same_top) == (0, 0, 1)
    assert found.perplexities == (1, 1)
    wrong = Divergence()
    wrong.add(certain[:1], certain[1:], np.array([0]))
    assert wrong.mean == 2e4 and wrong.perplexities == (1, math.inf) and wrong.same_top == 0


def test_excluded_tokens() -> None:
    """A token of probability 0 in the reference counts for nothing; one of probability 0 in the other alone, all."""
    masked = np.array([[0, 0, -np.inf]], np.float32)
    both = Divergence()
    both.add(masked, masked + 5, np.array([0]))
    assert both.mean == 0 and both.perplexities == (2, 2)
    wide = np.array([[0, 0, 1]], np.float32)
    narrower = Divergence()
    narrower.add(masked, wide, np.array([0]))
    assert narrower.mean == pytest.approx(math.log((2 + math.e) / 2))
    impossible = Divergence()
    impossible.add(wide, masked, np.array([2]))
    impossible.add(wide, wide, np.array([2]))
    assert impossible.mean == impossible.quantile(0.999) == impossible.perplexities[1] == math.inf


@pytest.mark.parametrize("row", [[0, np.nan, 1], [0, np.inf, 1], [-np.inf] * 3])
def test_logits_that_are_no_distribution(row: list[float]) -> None:
    bad, good = np.array([row], np.float32), np.zeros((1, 3), np.float32)
    for pair in ((bad, good), (good, bad)):
        with pytest.raises(EngineError, match=r"expected finite logits, found (nan|inf|-inf)"):
            Divergence().add(pair[0], pair[1], np.array([0]))
