"""Tokens that a draft expects to follow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridge.artifact.errors import RequestError
from hybridge.runtime.sampling import DraftToken


@dataclass(frozen=True, eq=False)
class Proposal:
    """Draft tokens in their order; there may be none.

    probabilities [tokens, vocab]: what each was drawn from, given those before it; None for a draft that does not draw.
    """

    token_ids: tuple[int, ...] = ()
    probabilities: np.ndarray | None = None

    def __post_init__(self) -> None:
        found = self.probabilities
        if found is not None and (found.ndim != 2 or len(found) != len(self.token_ids)):
            raise RequestError(
                f"expected probabilities [{len(self.token_ids)}, vocab] of the proposed tokens, found "
                f"{list(found.shape)}: give one row for each token"
            )

    def __len__(self) -> int:
        return len(self.token_ids)

    def first(self, count: int) -> Proposal:
        """The first ``count`` tokens alone."""
        if count >= len(self.token_ids):
            return self
        return Proposal(self.token_ids[:count], None if self.probabilities is None else self.probabilities[:count])

    def draft_token(self, index: int) -> DraftToken | None:
        """The draft token at ``index``; None past the end."""
        if index >= len(self.token_ids):
            return None
        return DraftToken(self.token_ids[index], None if self.probabilities is None else self.probabilities[index])
