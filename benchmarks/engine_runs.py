"""Prompts and decode steps of a dense engine: their logits, and their time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.measure import seconds
from hybridge.runtime.engines import DenseEngine
from hybridge.runtime.engines.dense import StateSet, StepInputs

if TYPE_CHECKING:
    from hybridge.runtime.engines.torch.device import TorchDevice


class EngineRuns:
    """Runs of one engine. Times end with logits in host memory."""

    # Steps before the clock starts: the first runs directly, the second records the graph.
    WARM_STEPS = 3

    def __init__(self, engine: DenseEngine) -> None:
        self._engine = engine
        self.vocab_size = engine.config.vocab_size

    def logits(self, sequence: np.ndarray, tokens: int, batch: int) -> list[np.ndarray]:
        """Logits [vocab] after ``tokens`` of ``sequence``, fed in two chunks, and after each token that follows.

        All of ``batch`` rows are the same; the logits are those of the last row.
        """
        states = self._engine.allocate_states(batch, sequence.size)
        cut, rows = max(1, tokens // 3), np.tile(sequence, (batch, 1))
        self._engine.step(dense_inputs(rows[:, :cut], 0), states)
        last = self._engine.step(dense_inputs(rows[:, cut:tokens], cut), states)[-1]
        found = [last.copy() if last.ndim == 1 else last[-1].copy()]  # with all logits, those of every token
        decoder = self._engine.decoder(range(batch), states)
        for past in range(tokens, sequence.size):
            found.append(decoder.step(rows[:, past].tolist(), [past] * batch)[-1].copy())
        return found

    def prompt_seconds(self, prompt: np.ndarray) -> float:
        """Seconds from the tokens ``prompt`` [batch, tokens] to the next one, with states allocated on the way."""
        batch, length = prompt.shape

        def answer() -> None:
            self._filled(prompt, self._engine.allocate_states(batch, length)).argmax(-1)

        return seconds(answer)

    def step_seconds(self, prompt: np.ndarray, steps: int, greedy: bool) -> float:
        """Seconds of one of ``steps`` decode steps after ``prompt`` [batch, tokens].

        greedy: each step's tokens are the largest logits of the one before; else they are known beforehand.
        """
        batch, length = prompt.shape
        states = self._engine.allocate_states(batch, length + self.WARM_STEPS + steps)
        tokens = [int(row.argmax()) for row in self._filled(prompt, states)]
        decoder = self._engine.decoder(range(batch), states)
        started = 0.0
        for step in range(self.WARM_STEPS + steps):
            if step == self.WARM_STEPS:
                started = time.perf_counter()
            logits = decoder.step(tokens, [length + step] * batch)
            if greedy:
                tokens = [int(row.argmax()) for row in logits]
        return (time.perf_counter() - started) / steps

    def _filled(self, prompt: np.ndarray, states: StateSet) -> np.ndarray:
        """Logits [batch, vocab] after ``prompt`` [batch, tokens], fed in the largest steps that the engine takes."""
        most = self._engine.max_step_tokens
        last = (prompt.shape[1] - 1) // most * most
        for done in range(0, last, most):
            self._engine.feed(dense_inputs(prompt[:, done : done + most], done), states)
        return self._engine.step(dense_inputs(prompt[:, last:], last), states)


def device_name(device: TorchDevice) -> str:
    """The GPU's name, or "cpu"."""
    if device.torch.type == "cpu":
        return "cpu"
    import torch

    return torch.cuda.get_device_name(device.torch)


def dense_inputs(ids: np.ndarray, past: int) -> StepInputs:
    """A step of ``ids`` [batch, tokens] after ``past`` tokens."""
    batch, tokens = ids.shape
    return StepInputs(ids, np.full(batch, tokens, np.int32), np.full(batch, past, np.int32))
