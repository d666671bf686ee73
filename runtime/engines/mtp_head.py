"""The interface of a multi-token prediction head."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from runtime.engines.paged import PackedInputs, PagedEngine


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadInputs(PackedInputs):
    """A step of a head: position i of a row has token i + 1 of the sequence.

    hidden_states [tokens, hidden] float32  of token i after the last layer, before the norm that follows
    is_own [tokens] int32                   0: the model's; 1: the head's own, of the position before
    """

    hidden_states: np.ndarray
    is_own: np.ndarray


class MtpHead(PagedEngine):
    """A head with pools of its own."""

    @abstractmethod
    def run(self, inputs: HeadInputs) -> tuple[list[int | None], np.ndarray]:
        """The most likely token after each of logits_indices, None where it is not finite, and what the head made of
        every token, before its norm: [tokens, hidden]. Errors as of ``step``."""
