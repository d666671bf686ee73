"""Memory that one sequence got for a step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Growth:
    """added: new blocks at the end of the table. copied: (index in the table, block before, block now) of the shared
    block that it writes to. new_slot, new_row: whether it had none. writable: what it was before."""

    added: int
    copied: tuple[int, int, int] | None
    new_slot: bool
    new_row: bool
    writable: int
