"""What the kernel ``feed_tokens`` reads to feed a decode step the tokens of the step before it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from hybridge.runtime.engines.device_sampling import ChosenTokens
from hybridge.trt_plugins.kernels.fused.token_feeding import MOST_STOPS


@dataclass(frozen=True, eq=False)
class FeedingTables:
    """Host memory that the kernel reads where it is: source [2] int64, stops [rows, MOST_STOPS] int32."""

    source: np.ndarray
    stops: np.ndarray

    def fill(self, tokens: ChosenTokens, stops: Sequence[Collection[int]]) -> None:
        """Set the tokens to feed, and the tokens that end each row (at most MOST_STOPS)."""
        self.source[:] = tokens.address, tokens.stride
        self.stops[: len(stops)] = -1
        for row, ids in zip(self.stops, stops, strict=False):
            row[: len(ids)] = list(ids)


def can_feed(stops: Sequence[Collection[int]]) -> bool:
    """Whether the kernel has room for the ``stops`` of every row."""
    return max(map(len, stops), default=0) <= MOST_STOPS
