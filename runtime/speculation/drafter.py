"""The interface of everything that proposes tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from hybridge.runtime.sampling import Guess
from hybridge.runtime.speculation.proposal import Proposal

# Draws a token from logits [vocab] of a draft's own, and says from what.
Draw = Callable[[np.ndarray], Guess]


class Wanted(NamedTuple):
    """At most ``most`` tokens after ``tokens``, which are all of the sequence ``sequence`` so far.

    ``tokens`` belongs to the caller and only ever grows. ``draw``: how the request draws, None where it takes the most
    likely tokens; a draft need not draw where the request does.
    """

    sequence: int
    tokens: Sequence[int]
    most: int
    draw: Draw | None = None


@runtime_checkable
class Drafter(Protocol):
    """Proposes for all sequences of a step at once, so that a draft model can run them in one batch."""

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """A proposal for each, which may be shorter than wanted, or empty.

        Whatever it raises costs these sequences their candidates, and nobody anything else.
        """

    def forget(self, sequence: int) -> None:
        """The sequence has ended. One that was never proposed for is none to forget."""
