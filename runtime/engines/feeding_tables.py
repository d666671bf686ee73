"""What the kernel ``feed_tokens`` reads to feed a step the tokens of the step before it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from hybridge.runtime.engines.chained_steps import Feeding
from hybridge.runtime.engines.device_sampling import ChosenTokens
from hybridge.trt_plugins.kernels.fused.token_feeding import MOST_STOPS


@dataclass(frozen=True, eq=False)
class FeedingTables:
    """Host memory that the kernel reads where it is: source [2] int64, stops [rows, MOST_STOPS] and sources [rows]
    int32."""

    source: np.ndarray
    stops: np.ndarray
    sources: np.ndarray

    def fill(self, tokens: ChosenTokens, stops: Sequence[Collection[int]], sources: Sequence[int]) -> None:
        """Set the tokens to feed, those that end each row (at most MOST_STOPS), and which one is each row's."""
        self.source[:] = tokens.address, tokens.stride
        self.sources[: len(sources)] = sources
        self.sources[len(sources) :] = -1
        self.stops[: len(stops)] = -1
        for row, ids in zip(self.stops, stops, strict=False):
            if ids:
                row[: len(ids)] = list(ids)

    def feed_nothing(self) -> None:
        """Leave all rows as they are."""
        self.sources[:] = -1


def token_rows(feeding: Feeding, rows: Sequence[int] | None = None) -> Sequence[int]:
    """By row of the step that is fed, the row of logits that gives its token, -1 for none.

    rows: that of each of logits_indices of the step before; None: they are in order.
    """
    sources = range(len(feeding.stops)) if feeding.sources is None else feeding.sources
    return sources if rows is None else [rows[source] if source >= 0 else -1 for source in sources]


def can_feed(stops: Sequence[Collection[int]]) -> bool:
    """Whether the kernel has room for the ``stops`` of every row."""
    return max(map(len, stops), default=0) <= MOST_STOPS
