"""The rows of one running batch, addressed by handles that survive compaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from hybridge.artifact.errors import RequestError
from hybridge.runtime.batch.chunking import chunk_length
from hybridge.runtime.caches import HybridCacheManager, RowSnapshot
from hybridge.runtime.engines.base import Decoder, Engine, StepInputs

# Takes logits [n, vocab], which are valid until it returns.
LogitsReader = Callable[[np.ndarray], object]
NO_READERS: Mapping[int, LogitsReader] = MappingProxyType({})


class RowBatch:
    """Up to ``rows`` sequences that advance together over one engine.

    ``join`` gives a handle (an integer that is never used again), which stays valid until ``finish``, also when
    ``compact`` moves the row. Only tokens given to ``feed`` or ``decode`` for a handle ever reach its states.
    When the engine fails in a step, the rows that took part are undefined and must be finished.
    ``engine_seconds`` is the time spent inside the engine's steps so far.
    """

    def __init__(self, engine: Engine, rows: int, tokens: int = 0) -> None:
        self.engine_seconds = 0.0
        self._engine = engine
        self._cache = HybridCacheManager(engine, rows, tokens)
        self._row_of: dict[int, int] = {}
        self._free = list(range(rows))
        self._next_handle = 0
        # The rows that decode at present, by handle, in the order of the rows, and what decodes them.
        self._decoding: dict[int, int] = {}
        self._decoder: Decoder

    @property
    def rows(self) -> int:
        """Rows that a step computes, in use or not."""
        return self._cache.rows

    @property
    def free(self) -> int:
        """Rows that ``join`` and ``take`` can still give out."""
        return len(self._free)

    @property
    def handles(self) -> tuple[int, ...]:
        """The handles in use, in the order in which they joined."""
        return tuple(self._row_of)

    def length(self, handle: int) -> int:
        """Tokens that the row has consumed."""
        return self._cache.lengths[self._row_of[handle]]

    def join(self, snapshot: RowSnapshot | None = None) -> int:
        """Take a free row, empty or in the state of ``snapshot``; RequestError if no row is free or it does not fit."""
        row = self._free_row()
        if snapshot is None:
            self._cache.clear_states([row])
        else:
            self._cache.restore(row, snapshot)
        return self._occupy(row)

    def take(self, other: RowBatch, handle: int) -> int:
        """Move the row ``handle`` of ``other`` into a free row of this batch and return its handle here."""
        row = self._free_row()
        self._cache.take_row(other._cache, other._row_of[handle], row)
        other.finish(handle)
        return self._occupy(row)

    def fork(self, handle: int) -> int:
        """Copy the row into a free one and return the handle of the copy."""
        row = self._free_row()
        self._cache.copy_row(self._row_of[handle], row)
        return self._occupy(row)

    def capture(self, handle: int) -> RowSnapshot:
        """A frozen copy of the row's states with their exact token count."""
        return self._cache.capture(self._row_of[handle])

    def finish(self, handle: int) -> None:
        """Give the row back. Its place stays in the batch, taking no part, until it is reused or compacted away."""
        row = self._row_of.pop(handle)
        self._free.append(row)
        self._decoding = {}
        self._cache.lengths[row] = 0

    def close_gaps(self) -> None:
        """Move rows so that those in use come first, one copy for each gap; the batch keeps its size."""
        for row, handle in sorted(((row, handle) for handle, row in self._row_of.items()), reverse=True):
            gap = min(self._free, default=row)
            if gap >= row:
                break
            self._cache.copy_row(row, gap)
            self._cache.lengths[row] = 0
            self._row_of[handle] = gap
            self._free.remove(gap)
            self._free.append(row)
            self._decoding = {}

    def compact(self) -> None:
        """Shrink the batch to the rows in use (at least one row must be)."""
        if not self._free:
            return
        self._cache.compact(list(self._row_of.values()))
        self._row_of = {handle: row for row, handle in enumerate(self._row_of)}
        self._free = []
        self._decoding = {}

    def feed(
        self, tokens: Mapping[int, Sequence[int] | np.ndarray], readers: Mapping[int, LogitsReader] = NO_READERS
    ) -> dict[int, np.ndarray]:
        """Feed any number of tokens to each of the given rows, in as many steps as the engine and memory ask for.

        Returns, by handle, the logits [vocab] float32 after the row's last token; a row given no token has none.
        Other rows keep their states. ``readers`` get, by handle, the logits [n, vocab] after each of the row's tokens,
        from the first on; an engine that gives those of the last token alone then takes one token a step.
        """
        longest = 1 if readers and not self._engine.config.all_logits else None
        pending = {handle: np.asarray(ids, np.int64) for handle, ids in tokens.items() if len(ids)}
        logits: dict[int, np.ndarray] = {}
        self._reserve({handle: ids.size for handle, ids in pending.items()})
        done = 0
        while pending:
            left = max(ids.size for ids in pending.values()) - done
            size = longest or chunk_length(self._engine, self.rows, left)
            chunk = {handle: ids[done : done + size] for handle, ids in pending.items()}
            step = self._step(chunk, readers)
            for handle, ids in chunk.items():
                if done + ids.size == pending[handle].size:
                    logits[handle] = step[self._row_of[handle]].copy()
                    del pending[handle]
            done += size
        return logits

    def decode(self, tokens: Mapping[int, int]) -> Iterable[tuple[int, np.ndarray]]:
        """Feed one token to each of the given rows (at least one): pairs of handle and logits [vocab] float32.

        The pairs come in the order of the rows, and the logits are valid until the next step of the engine.
        """
        if tokens.keys() != self._decoding.keys():
            self._decode_together(tokens)
        rows, lengths = self._decoding, self._cache.lengths
        past = [lengths[row] for row in rows.values()]
        self._cache.reserve(max(past) + 1)
        started = time.perf_counter()
        logits = self._decoder.step([tokens[handle] for handle in rows], past)
        self.engine_seconds += time.perf_counter() - started
        for row in rows.values():
            lengths[row] += 1
        return zip(rows, logits, strict=True)

    def _decode_together(self, handles: Iterable[int]) -> None:
        """Prepare ``decode`` for these handles, which usually come back many times."""
        rows = sorted((self._row_of[handle], handle) for handle in handles)
        self._decoding = {handle: row for row, handle in rows}
        self._decoder = self._engine.decoder(list(self._decoding.values()), self._cache.states)

    def _step(self, chunk: Mapping[int, np.ndarray], readers: Mapping[int, LogitsReader]) -> np.ndarray:
        """One ragged step; logits [rows, vocab] after the last token of each row in ``chunk``."""
        ids = np.zeros((self.rows, max(tokens.size for tokens in chunk.values())), np.int64)
        counts = np.zeros(self.rows, np.int32)
        for handle, tokens in chunk.items():
            row = self._row_of[handle]
            ids[row, : tokens.size] = tokens
            counts[row] = tokens.size
        started = time.perf_counter()
        logits = self._engine.step(StepInputs(ids, counts, np.array(self._cache.lengths, np.int32)), self._cache.states)
        self.engine_seconds += time.perf_counter() - started
        for handle, tokens in chunk.items():
            row = self._row_of[handle]
            self._cache.lengths[row] += tokens.size
            if handle in readers:
                readers[handle](logits[row, : tokens.size] if logits.ndim == 3 else logits[row : row + 1])
        return logits if logits.ndim == 2 else logits[np.arange(self.rows), np.maximum(counts - 1, 0)]

    def _reserve(self, new_tokens: Mapping[int, int]) -> None:
        lengths, rows = self._cache.lengths, self._row_of
        self._cache.reserve(max((lengths[rows[h]] + n for h, n in new_tokens.items()), default=0))

    def _free_row(self) -> int:
        if not self._free:
            raise RequestError(f"expected a free row, found all {self.rows} in use: finish one first")
        return min(self._free)

    def _occupy(self, row: int) -> int:
        self._free.remove(row)
        handle = self._next_handle
        self._next_handle += 1
        self._row_of[handle] = row
        return handle
