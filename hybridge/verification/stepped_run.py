"""The reference in the steps of an artifact with recurrent states of 8 bits, which rounds them after each."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hybridge.verification.reference import Reference, ReferenceRun


@dataclass(frozen=True)
class SteppedRun:
    """A sequence of ``past`` tokens through ``reference``, with its rounded states in ``cache``.

    run: all its tokens; logits of the last one alone. None for an empty sequence.
    """

    reference: Reference
    cache: Mapping[str, Any] | None = None
    past: int = 0
    _run: ReferenceRun | None = None

    @property
    def run(self) -> ReferenceRun:
        assert self._run is not None
        return self._run

    def fed(
        self,
        tokens: np.ndarray,
        parts: Sequence[int],
        inputs: Sequence[np.ndarray] | None = None,
        products: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> SteppedRun:
        """After ``tokens`` [n] more in steps of ``parts``, which add up to n.

        ``inputs`` and ``products``: as in ``Reference.run``.

        A first step is one call. Later ones are a call for each token, as a model generates: with a cache, not every
        model of transformers takes several. This object stays as it is.
        """
        cache, done, found = copy.deepcopy(self.cache), 0, self._run
        for part in parts:
            for size in [part] if self.past + done == 0 else [1] * part:
                own = slice(done, done + size)
                given = None if inputs is None else [value[own] for value in inputs]
                rounded = {name: value[own] if len(value) == len(tokens) else value for name, value in products.items()}
                run, cache = self.reference.call(tokens[own], cache, self.past + done, 1, given, rounded)
                found = run if found is None else _joined(found, run)
                done += size
            assert cache is not None and found is not None
            self.reference.round_states(cache)
            found = replace(found, states=self.reference.states(cache))
        return SteppedRun(self.reference, cache, self.past + done, found)


def _joined(first: ReferenceRun, second: ReferenceRun) -> ReferenceRun:
    """Two runs as one; what products round only where all tokens are known."""
    inputs = {
        name: np.concatenate([value, second.inputs[name]])
        if len(value) == len(first.embeddings)
        else second.inputs[name]
        for name, value in first.inputs.items()
    }
    hidden = tuple(np.concatenate(pair) for pair in zip(first.hidden, second.hidden, strict=True))
    embeddings = np.concatenate([first.embeddings, second.embeddings])
    return ReferenceRun(second.logits, embeddings, hidden, second.states, inputs)
