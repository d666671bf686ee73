"""Prefixes of prompts whose state is kept, so that a prompt that begins with one is computed from its end on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridge.runtime.batch import RowBatch
from hybridge.runtime.caches import RowSnapshot
from hybridge.runtime.engines.base import Engine

_NO_LOGITS = np.empty(0, np.float32)


@dataclass(frozen=True, eq=False)
class Prefix:
    """Tokens, the state after exactly these tokens, and the logits [vocab] float32 that follow them."""

    token_ids: tuple[int, ...]
    snapshot: RowSnapshot
    logits: np.ndarray

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.token_ids)

    @property
    def nbytes(self) -> int:
        """Host memory that the prefix takes, in bytes."""
        return self.snapshot.nbytes + self.logits.nbytes


class PrefixStore:
    """The prefixes of one engine. A prefix stays until it is removed: there is no eviction.

    With ``keeps_answers`` the state after the latest answer is kept too, in the place of the one before.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._by_tokens: dict[tuple[int, ...], Prefix] = {}
        self._answer: Prefix | None = None
        self.keeps_answers = False

    def add(self, token_ids: tuple[int, ...]) -> Prefix:
        """Compute and keep the prefix of ``token_ids`` (at least one), starting from the longest one known."""
        known = self.longest(token_ids)
        if known is not None and known.token_ids == token_ids:
            return known
        batch = RowBatch(self._engine, 1, len(token_ids))
        handle = batch.join(None if known is None else known.snapshot)
        logits = batch.feed({handle: token_ids[batch.length(handle) :]})[handle]
        logits.setflags(write=False)
        prefix = Prefix(token_ids, batch.capture(handle), logits)
        self._by_tokens[token_ids] = prefix
        return prefix

    def keep_answer(self, token_ids: tuple[int, ...], snapshot: RowSnapshot) -> None:
        """Keep the state after exactly ``token_ids``, a prompt and what was generated of its answer."""
        self._answer = Prefix(token_ids, snapshot, _NO_LOGITS)

    def forget_answer(self) -> None:
        """Forget the answer that is kept, if any."""
        self._answer = None

    def longest(self, token_ids: tuple[int, ...]) -> Prefix | None:
        """The longest prefix kept that ``token_ids`` begins with, or equals."""
        known = [*self._by_tokens.values()]
        # An answer's logits are not kept, so that at least one token has to follow it.
        if self._answer is not None and self._answer.length < len(token_ids):
            known.append(self._answer)
        matches = (p for p in known if token_ids[: p.length] == p.token_ids)
        return max(matches, key=lambda prefix: prefix.length, default=None)

    def remove(self, prefix: Prefix) -> None:
        """Forget ``prefix``; forgetting it twice is allowed."""
        self._by_tokens.pop(prefix.token_ids, None)

    def clear(self) -> None:
        """Forget all prefixes."""
        self._by_tokens.clear()
        self._answer = None
