"""Draft-token source for speculative decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from hybridge.runtime.sampling import DraftToken
from hybridge.runtime.speculation.proposal import Proposal

# Samples a draft token from a draft model's logits [vocab].
Draw = Callable[[np.ndarray], DraftToken]


class DraftRequest(NamedTuple):
    """A request for at most ``most`` tokens after ``tokens``, all tokens of the sequence ``sequence`` so far.

    ``tokens`` belongs to the caller and only grows. ``draw``: samples as the request does, None for greedy requests; a
    drafter need not use it.
    """

    sequence: int
    tokens: Sequence[int]
    most: int
    draw: Draw | None = None


@runtime_checkable
class Drafter(Protocol):
    """Proposes for all sequences of a step at once, so that a draft model can run them in one batch."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """A proposal for each, which may be shorter than requested, or empty.

        An exception disables drafting for these sequences only; output is unaffected.
        """

    def forget(self, sequence: int) -> None:
        """Forget an ended sequence; unknown ids are ignored."""


@runtime_checkable
class ForgetsAll(Protocol):
    """A drafter that can begin anew."""

    def forget_all(self) -> None:
        """Forget all sequences, also where an interrupt has cut ``forget`` short."""
