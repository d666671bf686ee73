"""The interface of a multi-token prediction head."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybridge.runtime.engines.hidden_rows import HiddenRows
from hybridge.runtime.engines.kv_slots import kv_slots
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.paged import PagedEngine


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadInputs(PackedInputs):
    """A step of a head: position i of a row has token i + 1 of the sequence. Every row's last token has logits.

    hidden_slots [tokens] int64   slot of the hidden states of token i among those that the head reads
    is_own [tokens] int32         0: they are the model's; 1: the head's own, of the position before
    own_slots [rows] int64        slot for the head's output for the row's last token, before its norm
    further [rows] int32          draft tokens after the first, made from the head's own states; the blocks of the row
                                  have room for their tokens
    """

    hidden_slots: np.ndarray
    is_own: np.ndarray
    own_slots: np.ndarray
    further: np.ndarray

    @property
    def autoregressive_steps(self) -> int:
        """Number of steps in which the head continues from its own hidden states."""
        return int(self.further.max())

    def own_step(self, index: int, block_size: int) -> tuple[np.ndarray, HeadInputs]:
        """The rows of the head's ``index``-th autoregressive step, and that step of one token for each.

        Its input_ids are 0: they are what came out for the row the time before.
        """
        rows = np.flatnonzero(self.further > index)
        bounds = np.arange(len(rows) + 1, dtype=np.int32)
        ends = self.seq_lens[rows] + index
        return rows, HeadInputs(
            input_ids=np.zeros(len(rows), np.int64),
            positions=self.positions[self.query_start_loc[1:][rows] - 1] + 1 + index,
            query_start_loc=bounds,
            seq_lens=ends + 1,
            block_table=self.block_table[rows],
            slot_mapping=kv_slots(self.block_table, rows, ends, block_size),
            state_indices=self.state_indices[rows],
            logits_indices=bounds[:-1],
            hidden_slots=self.own_slots[rows],
            is_own=np.ones(len(rows), np.int32),
            own_slots=self.own_slots[rows],
            further=np.zeros(len(rows), np.int32),
        )


class MtpHead(PagedEngine):
    """A head with its own pools."""

    @abstractmethod
    def read_from(self, rows: HiddenRows) -> None:
        """Find the hidden states of all later steps in ``rows``, those of the model's engine, and put its own there."""

    @abstractmethod
    def run(self, inputs: HeadInputs) -> list[list[int]]:
        """The most likely token after each row, then those of its ``further`` draft tokens, each after the one before.

        They end before one whose logits are not finite. Errors as of ``step``.
        """


def finite(tokens: Sequence[int | None]) -> list[int]:
    """``tokens`` up to the first that is None, of logits that are not finite."""
    found: list[int] = []
    for token in tokens:
        if token is None:
            break
        found.append(token)
    return found
