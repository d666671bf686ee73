"""Facts about the rows of a packed step that the host needs besides the arrays on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from hybridge.artifact.errors import EngineError


@dataclass(frozen=True, eq=False)
class StepRows:
    """Takes the place of query_start_loc among a program's inputs.

    bounds: query_start_loc [rows + 1] int32 on the device.
    counts: new tokens of each row; padding rows have none, or one in a recorded step. None in a recorded step whose
    rows have any number of tokens up to ``longest``: bounds says how many.
    lengths: tokens of each row after the step, 0 for a padding row. None in a recorded step, which serves all lengths.
    split: rows before it have at most one new token. longest: no row has more.
    stored: gets the calls of operators to be replayed, of a step that defers states.
    """

    bounds: torch.Tensor
    counts: tuple[int, ...] | None
    lengths: tuple[int, ...] | None
    split: int
    longest: int
    stored: CallRecorder | None = None

    @property
    def rows(self) -> int:
        return self.bounds.shape[0] - 1

    @property
    def known_counts(self) -> tuple[int, ...]:
        """``counts``; EngineError where they differ from run to run of a recorded step."""
        if self.counts is None:
            raise EngineError("expected kernels for every operator of a recorded step, found one that runs row by row")
        return self.counts

    @cached_property
    def singles(self) -> int:
        """Number of leading rows with one token each: token r belongs to row r."""
        return next((row for row, count in enumerate(self.known_counts) if count != 1), self.rows)

    def others(self) -> Iterator[tuple[int, int, int]]:
        """Row, first token and end of each later row that has tokens of a sequence."""
        begin = self.singles
        for row in range(self.singles, self.rows):
            end = begin + self.known_counts[row]
            if end > begin and (self.lengths is None or self.lengths[row]):
                yield row, begin, end
            begin = end


class Advancing(Protocol):
    """An operator that was called in a step and can be called again over other rows of its tokens."""

    @property
    def name(self) -> str:
        """The operator's name."""

    def advanced(self, given: Sequence[object], rows: StepRows, slots: torch.Tensor, accepted: torch.Tensor) -> tuple:
        """The outputs of the call ``given``, whose pools are changed in place."""


class CallRecorder(Protocol):
    """Records the calls of a step whose states are deferred."""

    def add(
        self, operator: Advancing, given: Sequence[object], of_tokens: Sequence[int], outputs: Sequence[torch.Tensor]
    ) -> None:
        """``operator`` was called: store its inputs ``of_tokens`` [tokens, ...]."""
