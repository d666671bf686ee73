"""Decoding some rows of a state set through its decode steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.dense import Decoder
from hybridge.runtime.engines.torch.decode_step import DecodeStep
from hybridge.runtime.engines.torch.states import TorchStateSet


class TorchDecoder(Decoder):
    """Gives the rows of a set their tokens. Other rows run along with a length of 0."""

    def __init__(
        self, rows: Sequence[int], states: TorchStateSet, vocab_size: int, bound: Callable[[int], DecodeStep]
    ) -> None:
        """``bound(tokens)`` is the step for rows of at most that many; EngineError when ``rows`` are not rows of it."""
        if not rows or rows[0] < 0 or rows[-1] >= states.batch:
            raise EngineError(f"expected rows from 0 to {states.batch - 1}, found {list(rows)}")
        self._rows, self._states, self._vocab_size, self._bound = list(rows), states, vocab_size, bound
        self._is_every_row = self._rows == list(range(states.batch))

    def step(self, tokens: Sequence[int], past_lengths: Sequence[int]) -> Sequence[np.ndarray]:
        longest = max(past_lengths)
        if min(past_lengths) < 0 or longest >= self._states.max_seq:
            raise EngineError(
                f"expected rows with room for one more token in {self._states.max_seq} positions, found rows that hold "
                f"{list(past_lengths)}: reserve more first"
            )
        if min(tokens) < 0 or max(tokens) >= self._vocab_size:
            raise EngineError(f"expected token ids from 0 to {self._vocab_size - 1}, found {list(tokens)}")
        step = self._bound(longest + 1)
        if self._is_every_row:
            step.buffers.fill(tokens, [1] * len(tokens), past_lengths)
        else:
            step.buffers.fill(*self._spread(tokens, past_lengths))
        logits = step.run()
        return [logits[row] if logits.ndim == 2 else logits[row, 0] for row in self._rows]

    def _spread(self, tokens: Sequence[int], past_lengths: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Tokens, numbers of new and of cached ones of every row of the set; the others have none."""
        ids, context, past = ([0] * self._states.batch for _ in range(3))
        for row, token, length in zip(self._rows, tokens, past_lengths, strict=True):
            ids[row], context[row], past[row] = token, 1, length
        return ids, context, past
