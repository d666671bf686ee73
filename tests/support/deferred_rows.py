"""Sequences in the pools of an engine, some of whose tokens turn out wrong: states are deferred and advanced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.pool_sizes import PoolSizes

MOST, ROWS, BLOCK = 3, 3, 16
BLOCKS_OF_ROW = 4
# Of each row in one step: draft tokens, and the share of them that is right.
Pattern = list[tuple[int, float]]


@dataclass
class Rows:
    """Sequences in pools of ``engine``, each with the first of its ``slots`` [rows, n]; its tokens that were right."""

    engine: PagedEngine
    slots: np.ndarray = field(default_factory=lambda: np.arange(2 * ROWS, dtype=np.int32).reshape(ROWS, 2))
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

    def check(self, new: Sequence[Sequence[int]], right: Sequence[int]) -> np.ndarray:
        """A step that defers the states of rows with draft tokens, which then advance by those that are right."""
        deferred = np.array([len(tokens) > 1 for tokens in new])
        logits = self.engine.step(replace(self.inputs(new), deferred=deferred)).copy()
        self.engine.advance(np.where(deferred, right, 0))
        self.accept(new, right)
        return logits

    def states(self) -> Iterator[np.ndarray]:
        for spec in self.engine.config.bindings.states:
            if not spec.grows:
                yield self.engine.read_pool(spec.name)[self.slots[:, 0]]


def assert_alone(rows: Rows, states: Sequence[np.ndarray]) -> np.ndarray:
    """The states of ``rows`` are those of their tokens, each row's fed at once; the logits of these."""
    alone = Rows(rows.engine, rows.slots)
    logits = alone.engine.step(alone.inputs(rows.tokens))
    for state, expected in zip(states, alone.states(), strict=True):
        assert np.linalg.norm(state - expected) <= 1e-5 * np.linalg.norm(expected)
    return logits
