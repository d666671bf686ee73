"""Specialisations of a session of the dense engine, and its inputs in addition to those of the artifact."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hybridge.artifact.bindings import Binding

# Graph inputs that the engine adds: per row the last position that is visible, and the largest context of all rows.
LAST_POSITIONS, LONGEST_CONTEXT = "engine.last_positions", "engine.longest_context"
# Of a paged graph for one row: the numbers of tokens after which it also returns the states (row_checkpoints.py).
CHECKPOINT_LENGTHS = "engine.checkpoint_lengths"


class GraphForm(Enum):
    """The shapes that a session is specialised for."""

    ONE_TOKEN = "one token of one row"
    TOKEN_PER_ROW = "one token of each row"
    GENERAL = "equally many tokens of each row"
    PADDED = "rows of unequal length, right-padded"


@dataclass(frozen=True)
class StateLayout:
    """A session's layout of a state: last two axes swapped or not, last axis as long as ``width``."""

    transposed: bool
    width: int

    def stored(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The session's shape of a state whose artifact declares ``shape``."""
        return *shape[:-2], shape[-1] if self.transposed else shape[-2], self.width


def checkpoint_output(pool: str) -> str:
    """Name of the output [n, ...] with the states of ``pool`` after the n numbers of tokens in CHECKPOINT_LENGTHS."""
    return f"{pool}.checkpoints"


def natural_layouts(specs: tuple[Binding, ...]) -> dict[str, StateLayout]:
    """Every state as the artifact declares it."""
    return {spec.name: StateLayout(False, int(spec.shape[-1])) for spec in specs}


ROW_STARTS = "engine.row_starts"
"""Input of graphs for several rows of any numbers of tokens: the first token of each row, and their number, int32
[rows + 1]."""
