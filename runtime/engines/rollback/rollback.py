"""The rows of a step whose states are deferred, until they advance by the tokens that were accepted.

A step leaves the state of a deferred row as it was. There are two ways on from there, chosen by operator (modes.py):

snapshot  the step writes the state after each token to its own slot, behind the slots that sequences have; the one
          after the last accepted token is copied over the row's state
replay    the step stores what the operator reads of each token; the operator runs again, over the accepted tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hybridge.artifact.errors import EngineError


@dataclass(frozen=True)
class SnapshotSlots:
    """Slots of a pool: the state after token j of the i-th deferred row is in slot first + i * tokens + j."""

    first: int
    tokens: int

    def table(self, counts: np.ndarray) -> np.ndarray:
        """The slots [n, tokens] int32 of rows of ``counts`` [n] tokens; -1 behind a row's last token."""
        slots = self.first + np.arange(len(counts) * self.tokens).reshape(-1, self.tokens)
        return np.where(np.arange(self.tokens) < counts[:, None], slots, -1).astype(np.int32)

    def after(self, row: int, count: int) -> int:
        """The slot of the state of the ``row``-th deferred row after ``count`` tokens, at least 1."""
        return self.first + row * self.tokens + count - 1


@dataclass(frozen=True, eq=False)
class DeferredRows:
    """Rows of one step whose states advance later.

    step_rows: of the whole step. rows [n]: their indices in it, counts [n]: their tokens, slots [n]: of their states.
    waits [n]: whether the row waits for ``Rollback.advance``; None: all do. The others have one token, by which they
    advance whatever is accepted. snapshots: None where every operator is replayed.
    """

    step_rows: int
    rows: np.ndarray
    counts: np.ndarray
    slots: np.ndarray
    waits: np.ndarray | None = None
    snapshots: SnapshotSlots | None = None


class RollbackMemory(Protocol):
    """An engine's access to the states of one step's deferred rows."""

    def advance(self, accepted: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        """Replay the first ``accepted`` [n] tokens of each deferred row, 0: the row's states stay unchanged.

        In the pools of operators with snapshots, copy each slot of ``sources`` over that of ``targets`` instead.
        """


class SlotPools(Protocol):
    """Pools of states."""

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None: ...


@dataclass(frozen=True)
class SnapshotRows:
    """A ``RollbackMemory`` that copies the state after the last accepted token."""

    pools: SlotPools

    def advance(self, accepted: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        self.pools.copy_slots(sources, targets)


class Rollback:
    """The deferred rows of the last step. At most one ``advance`` follows each ``defer``."""

    def __init__(self) -> None:
        self._memory: RollbackMemory | None = None
        # Whether rows that do not wait have not advanced yet.
        self._owes = False

    def forget(self) -> None:
        """A new step begins; states that did not advance stay unchanged."""
        self._memory, self._owes = None, False

    def defer(self, deferred: DeferredRows, memory: RollbackMemory) -> None:
        """A step has run, or runs, that left the states of ``deferred`` as they were."""
        rows, counts = deferred.rows.tolist(), deferred.counts.tolist()
        self._waits = [True] * len(rows) if deferred.waits is None else deferred.waits.tolist()
        self._limits = [0] * deferred.step_rows
        for row, count, waits in zip(rows, counts, self._waits, strict=True):
            self._limits[row] = count if waits else 0
        # Lists, because a step has few rows.
        self._rows, self._slots, self._snapshots = rows, deferred.slots.tolist(), deferred.snapshots
        self._memory, self._owes = memory, not all(self._waits)

    def settle(self) -> None:
        """Advance the rows that do not wait, unless they have advanced."""
        if self._owes and self._memory is not None:
            self._owes = False
            self._run(self._memory, [0 if waits else 1 for waits in self._waits])

    def advance(self, accepted: Sequence[int]) -> None:
        """Advance each row that waits by its first ``accepted`` [step rows] tokens; the others as ``settle`` does.

        EngineError when a number is not one of the row's tokens; then no row that waits advances.
        """
        memory = self._memory
        try:
            _check_accepted(accepted, [0] * len(accepted) if memory is None else self._limits)
        except EngineError:
            self.settle()
            self.forget()
            raise
        owed = int(self._owes)
        self.forget()
        if memory is not None:
            self._run(
                memory,
                [accepted[row] if waits else owed for row, waits in zip(self._rows, self._waits, strict=True)],
            )

    def _run(self, memory: RollbackMemory, accepted: Sequence[int]) -> None:
        if not any(accepted):
            return
        sources: list[int] = []
        targets: list[int] = []
        if self._snapshots is not None:
            for row, (count, slot) in enumerate(zip(accepted, self._slots, strict=True)):
                if count:
                    sources.append(self._snapshots.after(row, count))
                    targets.append(slot)
        memory.advance(accepted, sources, targets)


def _check_accepted(accepted: Sequence[int], limits: Sequence[int]) -> None:
    """EngineError when a row's states are to advance by other than 0 to ``limits`` [rows] tokens."""
    if len(accepted) != len(limits):
        raise EngineError(f"expected tokens to advance by for {len(limits)} rows, found {len(accepted)}")
    for row, (found, most) in enumerate(zip(accepted, limits, strict=True)):
        if not 0 <= found <= most:
            raise EngineError(f"row {row}: expected 0 to {most} tokens to advance by, found {found}")
