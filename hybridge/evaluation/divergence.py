"""How one distribution over the vocabulary diverges from another, position by position, in float64."""

from __future__ import annotations

import math

import numpy as np

from hybridge.artifact.errors import EngineError

# Numbers of one float64 block: 16 rows of a vocabulary of 262,144.
_BLOCK = 1 << 22


class Divergence:
    """Statistics of positions with the logits of a reference and of another model."""

    def __init__(self) -> None:
        self._kl: list[np.ndarray] = []
        self._losses = np.zeros(2)
        self._same = 0

    def add(self, reference: np.ndarray, other: np.ndarray, targets: np.ndarray) -> None:
        """Logits [n, vocab] of both, -inf allowed, and the tokens [n] that follow.

        EngineError where a row holds NaN or +inf, or no finite number.
        """
        rows = max(1, _BLOCK // reference.shape[1])
        for start in range(0, len(targets), rows):
            part = slice(start, start + rows)
            self._add(_log_softmax(reference[part]), _log_softmax(other[part]), targets[part])

    def _add(self, reference: np.ndarray, other: np.ndarray, targets: np.ndarray) -> None:
        rows = np.arange(len(targets))
        self._losses -= reference[rows, targets].sum(), other[rows, targets].sum()
        self._same += int((reference.argmax(1) == other.argmax(1)).sum())
        probability = np.exp(reference)
        # What the reference excludes counts for nothing, also where the other excludes it too.
        difference = np.subtract(reference, other, out=np.zeros_like(reference), where=probability > 0)
        self._kl.append(np.maximum((probability * difference).sum(1), 0.0))

    @property
    def positions(self) -> int:
        return sum(len(part) for part in self._kl)

    @property
    def perplexities(self) -> tuple[float, float]:
        """exp of the mean of -log p(next token): of the reference, and of the other."""
        with np.errstate(over="ignore"):
            reference, other = np.exp(self._losses / self.positions)
        return float(reference), float(other)

    @property
    def mean(self) -> float:
        """Mean of KL(reference || other), in nats."""
        return float(np.concatenate(self._kl).mean())

    def quantile(self, share: float) -> float:
        """The KL divergence that ``share`` of the positions do not exceed, interpolated as llama-perplexity does."""
        values = np.sort(np.concatenate(self._kl))
        place = share * (len(values) - 1)
        index, part = int(place), place - int(place)
        low, high = float(values[index]), float(values[min(index + 1, len(values) - 1)])
        return low if part == 0 or math.isinf(low) else (1 - part) * low + part * high

    @property
    def same_top(self) -> float:
        """The share of positions at which both find the same token the most likely one."""
        return self._same / self.positions


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-softmax of each row, in float64."""
    values = logits.astype(np.float64)
    peaks = values.max(1, keepdims=True)
    if not np.isfinite(peaks).all():
        bad = peaks[~np.isfinite(peaks)][0]
        raise EngineError(f"expected finite logits, found {bad}: verify the model, or compute it in a wider type")
    values -= peaks
    values -= np.log(np.exp(values).sum(1, keepdims=True))
    return values
