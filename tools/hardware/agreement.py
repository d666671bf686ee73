"""Two engines of one artifact on the same tokens: logits and states, step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridge.artifact.bindings import MAX_SEQ
from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.dense import DenseEngine, StateSet, StepInputs

# Relative norm of the difference from an engine that computes in float32: an artifact of a 16-bit type rounds after
# every operator, with 2**-11 (float16) or 2**-8 (bfloat16), and the errors of the layers add up.
TOLERANCE = {DType.FLOAT32: 1e-3, DType.FLOAT16: 1e-2, DType.BFLOAT16: 5e-2}
PROMPT_TOKENS, CHUNK_TOKENS, DECODE_STEPS, ROWS = 33, 5, 8, 3


@dataclass(frozen=True)
class Comparison:
    """The largest relative error of ``what`` in one step; None where a value was not finite."""

    step: str
    what: str
    error: float | None
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.error is not None and self.error <= self.tolerance


def compare_engines(found: DenseEngine, expected: DenseEngine) -> list[Comparison]:
    """A ragged prompt, a later chunk without tokens for one row, then single tokens; states after each of the three.

    Both engines get the same tokens, whatever they answer.
    """
    rows = min(ROWS, found.max_batch_size, expected.max_batch_size)
    room = min(found.max_seq_len, expected.max_seq_len)
    prompt = min(PROMPT_TOKENS, found.max_step_tokens, room - CHUNK_TOKENS - DECODE_STEPS)
    run = _Run(found, expected, rows, room)
    run.step("prompt", [max(1, prompt - 7 * row) for row in range(rows)])
    run.compare_states("prompt")
    run.step("chunk", [CHUNK_TOKENS if row == 0 else 0 if row == 1 else 2 for row in range(rows)])
    run.compare_states("chunk")
    for index in range(DECODE_STEPS):
        run.step(f"decode {index}", [1] * rows)
    run.compare_states("decode")
    return run.comparisons


class _Run:
    """The states of both engines, and what has been compared."""

    def __init__(self, found: DenseEngine, expected: DenseEngine, rows: int, room: int) -> None:
        self._engines = (found, expected)
        self._states: list[StateSet] = [engine.allocate_states(rows, room) for engine in self._engines]
        self._past = np.zeros(rows, np.int32)
        self._random = np.random.default_rng(0)
        self._tolerance = TOLERANCE[found.config.dtype]
        self.comparisons: list[Comparison] = []

    def step(self, name: str, lengths: list[int]) -> None:
        """Random tokens, ``lengths`` of them in each row; compares the logits of the rows that have some."""
        counts = np.array(lengths, np.int32)
        vocabulary = self._engines[0].config.vocab_size
        tokens = self._random.integers(0, vocabulary, (len(lengths), int(counts.max())), dtype=np.int64)
        inputs = StepInputs(tokens, counts, self._past.copy())
        logits = [
            engine.step(inputs, states).copy() for engine, states in zip(self._engines, self._states, strict=True)
        ]
        if logits[0].ndim == 3:
            logits = [rows[np.arange(len(lengths)), np.maximum(counts, 1) - 1] for rows in logits]
        self._past += counts
        self._compare(name, "logits", [values[counts > 0] for values in logits])

    def compare_states(self, name: str) -> None:
        """Every state, over the rows; of caches the positions that hold tokens."""
        for state in self._states[0].buffers:
            sides = []
            for states in self._states:
                buffer = states.buffers[state]
                grows = MAX_SEQ in buffer.spec.shape
                rows = [buffer.read_row(r, int(n) if grows else None) for r, n in enumerate(self._past)]
                sides.append(np.concatenate([row.ravel() for row in rows]))
            self._compare(name, state, sides)

    def _compare(self, step: str, what: str, sides: list[np.ndarray]) -> None:
        found, expected = (values.astype(np.float64) for values in sides)
        error = float(np.linalg.norm(found - expected) / max(float(np.linalg.norm(expected)), 1e-30))
        finite = bool(np.isfinite(found).all() and np.isfinite(error))
        self.comparisons.append(Comparison(step, what, error if finite else None, self._tolerance))
