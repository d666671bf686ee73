"""The results of one row in one scenario of a verification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybridge.artifact import names

NO_STATES: dict[str, np.ndarray] = {}
# Scenarios of a row with filled caches: the step that crosses the edge, and single tokens past it.
FAR_SCENARIOS = WINDOW_EDGE, PAST_WINDOW = "window edge", "decode past the window"


@dataclass(frozen=True)
class Observation:
    """Results of one row after ``length`` tokens of prompt ``prompt``: logits [vocab], states, hidden states.

    ``hidden`` [T, hidden] per layer and ``embeddings`` [T, hidden] of the tokens that the row was fed, empty and None
    where not requested. ``inputs`` [T, features] by module: what products round. ``parts``: the tokens of each step of
    the row, which add up to ``length`` except after filled caches.
    """

    scenario: str
    prompt: int
    length: int
    logits: np.ndarray
    states: dict[str, np.ndarray]
    hidden: tuple[np.ndarray, ...] = ()
    embeddings: np.ndarray | None = None
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    parts: tuple[int, ...] = ()

    @property
    def layer_inputs(self) -> tuple[np.ndarray, ...]:
        """The inputs [T, hidden] of each layer and of the head, of an observation with hidden states."""
        assert self.embeddings is not None
        return (self.embeddings, *self.hidden)


@dataclass(frozen=True)
class InnerValues:
    """The inner values that observations show: the embeddings, the outputs of ``layers``, and inputs of products.

    products: module to the name of the value that its product rounds.
    """

    layers: int
    products: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the values, each once."""
        outputs = (names.layer_output(i) for i in range(self.layers))
        return tuple(dict.fromkeys((names.EMBEDDINGS_OUTPUT, *outputs, *self.products.values())))

    def fields(self, shown: Sequence[np.ndarray]) -> dict[str, Any]:
        """Fields of an observation from the values of ``names``; none without values."""
        if not shown:
            return {}
        by_name = dict(zip(self.names, shown, strict=True))
        inputs = {module: by_name[name] for module, name in self.products.items()}
        return {"embeddings": shown[0], "hidden": tuple(shown[1 : 1 + self.layers]), "inputs": inputs}
