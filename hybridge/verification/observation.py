"""The results of one row in one scenario of a verification."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridge.artifact import names

NO_STATES: dict[str, np.ndarray] = {}
# Scenarios of a row with filled caches: the step that crosses the edge, and single tokens past it.
FAR_SCENARIOS = WINDOW_EDGE, PAST_WINDOW = "window edge", "decode past the window"


@dataclass(frozen=True)
class Observation:
    """Results of one row after ``length`` tokens of prompt ``prompt``: logits [vocab], states, hidden states.

    ``hidden`` [T, hidden] per layer and ``embeddings`` [T, hidden] of the tokens that the row was fed, empty and None
    where not requested.
    """

    scenario: str
    prompt: int
    length: int
    logits: np.ndarray
    states: dict[str, np.ndarray]
    hidden: tuple[np.ndarray, ...] = ()
    embeddings: np.ndarray | None = None


def inner_values(layers: int) -> tuple[str, ...]:
    """Names of the embeddings and of every layer's hidden states."""
    return (names.EMBEDDINGS_OUTPUT, *(names.layer_output(i) for i in range(layers)))
