"""Logits of an artifact, dense or paged, in any engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hybridge.inspection.artifact import inspect_artifact
from hybridge.runtime.engines.factory import EngineOptions
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.serving.open import open_engine

_BLOCK_SIZE = 16


class ArtifactLogits:
    """One sequence in pools that hold ``window`` tokens. Errors as in ``open_engine``."""

    def __init__(self, folder: Path, engine: str, window: int, exact_products: bool = False) -> None:
        self._engine = open_engine(folder, engine, EngineOptions(exact_products=exact_products))
        self._config = self._engine.config.require_logits()
        self.name = f"{self._engine.name}, {self._config.layout}"
        self.weight_bytes = inspect_artifact(folder).weight_bytes
        self.notes = self._engine.notes
        self._size = self._engine.block_size(_BLOCK_SIZE)
        self._blocks = -(-min(window, self.most_tokens) // self._size) if self._config.kv_layers else 0
        slots = 1 if self._config.recurrent_layers else 0
        self._slots = list(range(slots))
        self._engine.allocate_pools(PoolSizes(self._blocks, self._size, slots))

    @property
    def vocab_size(self) -> int:
        return int(self._config.vocab_size)

    @property
    def most_tokens(self) -> int:
        return int(self._config.max_seq_len)

    def logits(self, tokens: np.ndarray, first: int, rows: int) -> Iterator[np.ndarray]:
        if self._slots:
            self._engine.zero_slots(self._slots)
        most, last = self._engine.limits.max_tokens, len(tokens) - 1
        for start in range(0, first, most):
            self._step(tokens, start, min(start + most, first), 0)
        for start in range(first, last, rows):
            stop = min(start + rows, last)
            parts = [(at, min(at + most, stop)) for at in range(start, stop, most)]
            if len(parts) == 1:
                yield self._step(tokens, start, stop, stop - start)
            else:
                yield np.concatenate([self._step(tokens, *part, part[1] - part[0]).copy() for part in parts])

    def close(self) -> None:
        self._engine.close()

    def _step(self, tokens: np.ndarray, start: int, stop: int, logits: int) -> np.ndarray:
        """Feed tokens ``start`` to ``stop`` of the sequence; the logits of the last ``logits`` of them."""
        count, positions = stop - start, np.arange(start, stop, dtype=np.int64)
        has_kv = bool(self._blocks)
        inputs = PackedInputs(
            input_ids=np.ascontiguousarray(tokens[start:stop], np.int64),
            positions=positions,
            query_start_loc=np.array([0, count], np.int32),
            seq_lens=np.array([stop], np.int32),
            # Block i has the positions from i * block_size on.
            block_table=np.arange(max(self._blocks, 1), dtype=np.int32)[None] - (not has_kv),
            slot_mapping=positions.astype(np.int32) if has_kv else np.full(count, -1, np.int32),
            state_indices=np.array([0 if self._slots else -1], np.int32),
            logits_indices=np.arange(count - logits, count, dtype=np.int32),
        )
        return self._engine.step(inputs)
