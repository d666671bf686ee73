"""What a packed step knows of its rows, beside the arrays that lie on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True, eq=False)
class StepRows:
    """Takes the place of query_start_loc among a program's inputs.

    bounds: query_start_loc [rows + 1] int32 on the device.
    counts: new tokens of each row; padding rows have none, or one in a recorded step.
    lengths: tokens of each row after the step, 0 for a padding row. None in a recorded step, which stands for all.
    split: rows before it have at most one new token. longest: no row has more.
    """

    bounds: torch.Tensor
    counts: tuple[int, ...]
    lengths: tuple[int, ...] | None
    split: int
    longest: int

    @property
    def rows(self) -> int:
        return len(self.counts)

    @cached_property
    def singles(self) -> int:
        """How many rows, from the first on, have one token each: token r is that of row r."""
        return next((row for row, count in enumerate(self.counts) if count != 1), self.rows)

    def others(self) -> Iterator[tuple[int, int, int]]:
        """Row, first token and end of each later row that has tokens of a sequence."""
        begin = self.singles
        for row in range(self.singles, self.rows):
            end = begin + self.counts[row]
            if end > begin and (self.lengths is None or self.lengths[row]):
                yield row, begin, end
            begin = end
