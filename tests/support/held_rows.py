"""Sequences in the pools of an engine, some of whose tokens turn out wrong: states held and advanced, or kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hybridge.runtime.engines.paged import PackedInputs, PagedEngine, PoolSizes

MOST, ROWS, BLOCK = 3, 3, 16
BLOCKS_OF_ROW, COLUMNS = 4, 1 + MOST
# Of each row in one step: candidate tokens, and the share of them that is right.
Pattern = list[tuple[int, float]]


@dataclass
class Rows:
    """Sequences in pools of ``engine``, ``slots`` [rows, columns] of each; tokens of each that were right so far."""

    engine: PagedEngine
    slots: np.ndarray = field(default_factory=lambda: np.arange(ROWS * COLUMNS, dtype=np.int32).reshape(ROWS, COLUMNS))
    tokens: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        rows = len(self.slots)
        self.tokens = [[] for _ in range(rows)]
        self.engine.allocate_pools(PoolSizes(rows * BLOCKS_OF_ROW, BLOCK, self.slots.size))
        self.engine.fill_pools(np.nan)
        self.engine.zero_slots(self.slots[:, 0].tolist())

    def inputs(self, new: Sequence[Sequence[int]]) -> PackedInputs:
        """``new`` tokens of each row, at least one."""
        starts, counts = [len(tokens) for tokens in self.tokens], [len(tokens) for tokens in new]
        bounds = np.array([0, *np.cumsum(counts)], np.int32)
        positions = np.concatenate([start + np.arange(n) for start, n in zip(starts, counts, strict=True)])
        rows = len(self.slots)
        first = np.repeat(np.arange(rows) * BLOCKS_OF_ROW * BLOCK, counts)
        return PackedInputs(
            np.concatenate(new).astype(np.int64),
            positions.astype(np.int64),
            bounds,
            (np.array(starts) + counts).astype(np.int32),
            np.arange(rows * BLOCKS_OF_ROW, dtype=np.int32).reshape(rows, -1),
            (first + positions).astype(np.int32),
            self.slots[:, 0].copy(),
            np.arange(bounds[-1], dtype=np.int32),
        )

    def accept(self, new: Sequence[Sequence[int]], right: Sequence[int]) -> None:
        for tokens, more, count in zip(self.tokens, new, right, strict=True):
            tokens.extend(more[:count])

    def hold(self, new: Sequence[Sequence[int]], right: Sequence[int]) -> np.ndarray:
        """A step that holds the states of rows with candidates, and what of them is right."""
        held = np.array([len(tokens) > 1 for tokens in new])
        logits = self.engine.step(replace(self.inputs(new), held=held)).copy()
        self.engine.advance(np.where(held, right, 0))
        self.accept(new, right)
        return logits

    def keep(self, new: Sequence[Sequence[int]], right: Sequence[int]) -> np.ndarray:
        """The same with a state after each token, of which the right one becomes the row's."""
        accepted = np.ones(len(self.slots), np.int32)
        step = replace(self.inputs(new), state_indices=self.slots.copy(), num_accepted_tokens=accepted)
        logits = self.engine.step(step).copy()
        for slots, count in zip(self.slots, right, strict=True):
            slots[[0, count - 1]] = slots[[count - 1, 0]]
        self.accept(new, right)
        return logits

    def states(self) -> Iterator[np.ndarray]:
        for spec in self.engine.config.bindings.states:
            if not spec.grows:
                yield self.engine.read_pool(spec.name)[self.slots[:, 0]]


def assert_alone(rows: Rows, states: Sequence[np.ndarray]) -> None:
    """The states of ``rows`` are those of their tokens, each row's fed at once."""
    alone = Rows(rows.engine, rows.slots)
    alone.engine.step(alone.inputs(rows.tokens))
    for state, expected in zip(states, alone.states(), strict=True):
        assert np.linalg.norm(state - expected) <= 1e-5 * np.linalg.norm(expected)
