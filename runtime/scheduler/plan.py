"""The plan of one step; made before the step and immutable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar, NamedTuple


class PlannedRow(NamedTuple):
    """Feed ``new_tokens`` tokens of a sequence from position ``start`` on.

    table_row: its row of the block tables. slot: of its recurrent states, -1 without. samples: these are its last
    tokens, so that the logits after them choose the next one. draft_tokens: the last of new_tokens, which the sequence
    does not have yet and may never have. prompt_logits: how many tokens of the prompt, right before those that choose a
    token, give logits in addition. checkpoints: numbers of new tokens, fewer than all, and the slots that receive the
    states after these.
    """

    sequence: int
    start: int
    new_tokens: int
    table_row: int
    slot: int
    samples: bool
    draft_tokens: tuple[int, ...] = ()
    prompt_logits: int = 0
    checkpoints: tuple[tuple[int, int], ...] = ()

    @property
    def logits(self) -> int:
        """Number of the last new tokens that give logits."""
        return self.prompt_logits + (1 + len(self.draft_tokens) if self.samples else 0)


class Swap(NamedTuple):
    """Move the memory of a sequence between the device's blocks and slots and the host."""

    sequence: int
    blocks: tuple[int, ...]
    slots: tuple[int, ...]


@dataclass(frozen=True)
class StepPlan:
    """The engine's work, in this order: slot_copies (one after another), swap_outs, swap_ins, resumed_slots, zeroed
    slots, block_copies, the packed rows, and taken_slots. There may be no row.

    Copies are pairs of source and target. forked: the sequences that slot_copies are for. resumed_slots: states of the
    prefix cache with which rows begin. taken_slots: states after the step, for the prefix cache,
    which takes those of ``PlannedRow.checkpoints`` too.

    repeats: whether this is a ``RepeatedPlan``.
    """

    repeats: ClassVar[bool] = False

    number: int
    rows: tuple[PlannedRow, ...]
    slot_copies: tuple[tuple[int, int], ...] = ()
    swap_outs: tuple[Swap, ...] = ()
    swap_ins: tuple[Swap, ...] = ()
    zeroed_slots: tuple[int, ...] = ()
    block_copies: tuple[tuple[int, int], ...] = ()
    forked: tuple[int, ...] = ()
    resumed_slots: tuple[tuple[int, int], ...] = ()
    taken_slots: tuple[tuple[int, int], ...] = ()

    @property
    def num_rows(self) -> int:
        """Rows of the step."""
        return len(self.rows)

    @property
    def tokens(self) -> int:
        """New tokens of the step."""
        return sum(row.new_tokens for row in self.rows)

    def logits_starts(self) -> list[int]:
        """The index of each row's first logits in those of the step."""
        return [0, *accumulate(row.logits for row in self.rows)][:-1]

    @property
    def moves_nothing(self) -> bool:
        """Whether the step has rows alone, which begin with what their blocks and slots hold."""
        return not (
            self.zeroed_slots
            or self.block_copies
            or self.slot_copies
            or self.swap_ins
            or self.swap_outs
            or self.resumed_slots
        )

    @property
    def is_plain(self) -> bool:
        """Whether the step has one row of logits for each row that samples, and no other."""
        return not any([row.draft_tokens or row.prompt_logits for row in self.rows])


class NewBlock(NamedTuple):
    """``block`` belongs in column ``column`` of row ``row`` of the step's block table."""

    row: int
    column: int
    block: int


class RepeatedPlan(StepPlan):
    """The previous step again: each of its rows decodes the next token, in its present memory and ``new_blocks``.

    Most steps are of this kind. Rows are created only when they are read: between two steps of a large model Python's
    objects leave the processor's caches, and each costs several times as much as elsewhere.
    """

    repeats = True
    new_blocks: Sequence[NewBlock]

    def __init__(self, number: int, first: StepPlan, steps: int, new_blocks: Sequence[NewBlock] = ()) -> None:
        """The plan of ``steps`` steps after ``first``, whose rows are the same."""
        self.__dict__.update(number=number, new_blocks=new_blocks, _first=first, _steps=steps)

    @cached_property
    def rows(self) -> tuple[PlannedRow, ...]:  # type: ignore[override]
        """The rows of ``first``, further on."""
        steps: int = self.__dict__["_steps"]
        return tuple([row._replace(start=row.start + steps) for row in self.__dict__["_first"].rows])

    @property
    def num_rows(self) -> int:
        first: StepPlan = self.__dict__["_first"]
        return len(first.rows)

    @property
    def moves_nothing(self) -> bool:
        return True

    @property
    def is_plain(self) -> bool:
        return True
