"""Rows of a dense engine: their states and, on request, the inner values of all tokens that they were fed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybridge.artifact import names
from hybridge.artifact.config import RuntimeConfig
from hybridge.runtime.engines.dense import DenseEngine, StateSet, StepInputs
from hybridge.verification.observation import InnerValues, Observation


@dataclass(frozen=True)
class RowCopy:
    """A row after some tokens: its states, the inner values [tokens, hidden] of these tokens, those of each step."""

    states: dict[str, np.ndarray]
    shown: tuple[np.ndarray, ...]
    parts: tuple[int, ...]


class DenseRows:
    """``batch`` rows with room for ``max_seq`` tokens, without any.

    inner: the values to record, if any.
    """

    def __init__(self, engine: DenseEngine, batch: int, max_seq: int, inner: InnerValues | None = None) -> None:
        self.states: StateSet = engine.allocate_states(batch, max_seq)
        self._engine, self._inner = engine, inner
        self._shown: list[list[np.ndarray]] = [[] for _ in range(batch)]
        self._parts: list[tuple[int, ...]] = [()] * batch

    def step(self, rows: Sequence[np.ndarray], past: Sequence[int]) -> np.ndarray:
        """One step with the new tokens of each row after ``past`` others; logits [batch, vocab] of the last ones."""
        inputs = step_inputs(rows, past)
        self._parts = [(*old, len(row)) if len(row) else old for old, row in zip(self._parts, rows, strict=True)]
        if self._inner is None:
            logits = self._engine.step(inputs, self.states)
        else:
            found = self._engine.step_values(inputs, self.states, self._inner.names)
            logits = found[names.LOGITS]
            for row, tokens in enumerate(rows):
                new = [_of_row(found[name], row, len(tokens)) for name in self._inner.names]
                before = self._shown[row] or [value[:0] for value in new]
                self._shown[row] = [np.concatenate(pair) for pair in zip(before, new, strict=True)]
        return _last_logits(logits, [len(tokens) for tokens in rows])

    def feed(self, rows: list[np.ndarray], past: list[int], parts: Sequence[int]) -> list[np.ndarray]:
        """Feed each row its tokens after ``past`` in parts of lengths ``parts``; logits [vocab] of each last token.

        A part that is too long for one step of the engine is split; a row without tokens left has length 0.
        """
        found: list[np.ndarray] = [np.empty(0)] * len(rows)
        most = self._engine.max_step_tokens
        for size in (min(most, part - done) for part in parts for done in range(0, part, most)):
            tokens = [row[done : done + size] for row, done in zip(rows, past, strict=True)]
            logits = self.step(tokens, past)
            found = [logits[row].copy() if len(tokens[row]) else last for row, last in enumerate(found)]
            past = [done + len(part) for done, part in zip(past, tokens, strict=True)]
        return found

    def stop_recording(self) -> None:
        """Stop recording inner values, and drop those recorded so far."""
        self._inner, self._shown = None, [[] for _ in self._shown]

    def copy(self, row: int, length: int) -> RowCopy:
        """The row after its ``length`` tokens."""
        return RowCopy(_row(self.states, row, length), tuple(self._shown[row]), self._parts[row])

    def write(self, row: int, copy: RowCopy) -> None:
        """Set an empty row to what ``copy`` holds."""
        for name, value in copy.states.items():
            self.states.buffers[name].write_row(row, value)
        self._shown[row], self._parts[row] = list(copy.shown), copy.parts

    def observed(
        self,
        scenario: str,
        prompt: int,
        row: int,
        length: int,
        logits: np.ndarray,
        states: dict[str, np.ndarray] | None = None,
    ) -> Observation:
        """The observation of a row after ``length`` tokens; ``states``: instead of all of the row's."""
        shown = {} if self._inner is None else self._inner.fields(self._shown[row])
        own = exact_row(self.states, row, length, self._engine.config) if states is None else states
        return Observation(scenario, prompt, length, logits, own, parts=self._parts[row], **shown)


def read_row(states: StateSet, row: int, length: int) -> dict[str, np.ndarray]:
    """All states of one row as float32, KV caches up to ``length`` positions."""
    return {name: value.astype(np.float32) for name, value in _row(states, row, length).items()}


def exact_row(states: StateSet, row: int, length: int, config: RuntimeConfig) -> dict[str, np.ndarray]:
    """As ``read_row``, but recurrent states times their scales, or after the tokens of their rings, instead of both."""
    found = _row(states, row, length)
    for own in config.state_scales:
        found[own.name] = own.exact(found[own.name], found.pop(own.scales))
    for ring in config.state_rings:
        tokens = {name: found.pop(name) for name in ring.names}
        found[ring.state] = ring.flushed(found[ring.state], tokens)
    return {name: value.astype(np.float32) for name, value in found.items()}


def step_inputs(rows: Sequence[np.ndarray], past: Sequence[int]) -> StepInputs:
    """Right-padded inputs for ``rows`` of new tokens."""
    ids = np.zeros((len(rows), max(1, max(len(r) for r in rows))), np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
    return StepInputs(ids, np.array([len(r) for r in rows], np.int32), np.array(past, np.int32))


def _of_row(value: np.ndarray, row: int, tokens: int) -> np.ndarray:
    """A row's part [tokens, size] of an inner value; of one of last tokens alone, [batch, size], the row's own."""
    return value[row, :tokens] if value.ndim == 3 else value[row][None][:tokens]


def _row(states: StateSet, row: int, length: int) -> dict[str, np.ndarray]:
    return {
        name: buffer.read_row(row, length if "max_seq" in buffer.spec.shape else None)
        for name, buffer in states.buffers.items()
    }


def _last_logits(logits: np.ndarray, lengths: list[int]) -> np.ndarray:
    """[batch, vocab] of each row's last valid token, from either form of the logits output."""
    if logits.ndim == 2:
        return logits
    return np.stack([logits[row, max(length - 1, 0)] for row, length in enumerate(lengths)])
