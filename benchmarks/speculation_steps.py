"""Steps of the torch engine with draft tokens, alone: their times, and gates of their logits and states."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.agreement import BFLOAT16_TOLERANCE, error_gate, random_prompt
from benchmarks.measure import Spread, seconds, spreads, take_turns
from benchmarks.paged_runs import allocate, draft_logits, paged_logits, step_inputs
from benchmarks.runner import Gate
from hybridge.runtime.engines.paged import PackedInputs
from hybridge.runtime.engines.rollback.modes import REPLAY, SNAPSHOT
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine


def logits_gate(engine: TorchPagedEngine, most: int, tokens: int, steps: int) -> Gate:
    """Logits of ``steps`` draft tokens after ``tokens``, 1 to ``most`` in a step, against those of one token a step."""
    sequence = random_prompt(engine.config.vocab_size, tokens + steps, seed=1)
    expected = paged_logits(engine, sequence, tokens, 1)
    engine.prepare_rollback(1, most, SNAPSHOT)
    checks = f"logits of {steps} draft tokens after {tokens} tokens against those of one token a step"
    return error_gate(checks, draft_logits(engine, sequence, tokens, most), expected, BFLOAT16_TOLERANCE)


def advance_gate(engine: TorchPagedEngine, rows: int, most: int, past: int) -> Gate:
    """The states of rows that were deferred and advanced against those of the same tokens without draft tokens.

    most: tokens of a row in a step, after ``past``.
    """
    engine.prepare_rollback(rows, most, REPLAY)
    inputs, right = _deferred_step(engine, rows, most, past), 1 + np.arange(rows) % most
    gates = []
    for _ in range(4):  # directly, recorded, and twice as it was recorded
        engine.zero_slots(range(rows))
        engine.launch(inputs).best_tokens()
        engine.advance(right.astype(np.int32))
        found = _states(engine, rows)
        engine.zero_slots(range(rows))
        for row in range(rows):
            ids = _counted_ids(rows, most)[row : row + 1, : right[row]]
            engine.launch(step_inputs(engine, ids, past, past + most, first_row=row)).best_tokens()
        checks = f"states of {rows} rows that were deferred and advanced against those of steps of the right tokens"
        gates.append(error_gate(checks, found, _states(engine, rows), BFLOAT16_TOLERANCE))
    return max(gates, key=lambda gate: gate.value)


def _deferred_step(engine: TorchPagedEngine, rows: int, tokens: int, past: int) -> PackedInputs:
    """A step of ``tokens`` tokens a row after ``past`` that leaves the recurrent states as they are, in new pools."""
    allocate(engine, rows, past + tokens)
    engine.fill_pools(0.0)
    return step_inputs(engine, _counted_ids(rows, tokens), past, past + tokens, deferred=True)


def _counted_ids(rows: int, tokens: int) -> np.ndarray:
    """Token ids 1, 2, ... [rows, tokens]."""
    return np.arange(1, rows * tokens + 1).reshape(rows, tokens)


def _states(engine: TorchPagedEngine, rows: int) -> list[np.ndarray]:
    arrays = engine.arrays_from_copy(engine.swap_out([], list(range(rows))))
    return [arrays[spec.name].astype(np.float32) for spec in engine.config.bindings.states if not spec.grows]


class StepTimes:
    """Microseconds of a step: in each of ``repeats`` the median of ``steps`` after ``past`` tokens.

    most: tokens of a row with all of its draft tokens.
    """

    def __init__(self, engine: TorchPagedEngine, past: int, most: int, steps: int, repeats: int) -> None:
        self._engine, self._past, self._most, self._steps, self._repeats = engine, past, most, steps, repeats

    def of_draft_tokens(self, rows: int) -> dict[str, Any]:
        """A step of one token a row, of two, and of one with all draft tokens, with a snapshot after each."""
        engine, most, total = self._engine, self._most, self._past + self._most
        engine.prepare_rollback(rows, most, SNAPSHOT)
        allocate(engine, rows, total)
        engine.fill_pools(0.0)

        def step(tokens: int) -> Callable[[], float]:
            inputs = step_inputs(engine, _counted_ids(rows, tokens), self._past, total, deferred=tokens > 1)
            return self._median(lambda: seconds(lambda: engine.launch(inputs).best_tokens()))

        times = take_turns({str(tokens): step(tokens) for tokens in sorted({1, 2, most})}, self._repeats)
        return {"us": spreads(times), "ratio": Spread.of_ratios(times[str(most)], times["1"])}

    def of_replay(self, rows: int) -> dict[str, Any]:
        """A check of all draft tokens, and with the states advanced by three of five of its tokens.

        One after the other, as in a serving loop: only the next step waits for an advance. share: of both together that
        the advance takes. wall: from its call until the device is idle.
        """
        engine, most = self._engine, self._most
        engine.prepare_rollback(rows, most, REPLAY)
        inputs = _deferred_step(engine, rows, most, self._past)
        right = np.full(rows, max(1, 3 * most // 5), np.int32)

        def check() -> None:
            engine.launch(inputs).best_tokens()

        def both() -> None:
            check()
            engine.advance(right)

        def advance() -> None:
            engine.advance(right)
            engine.device.synchronize()

        def wall() -> float:
            check()
            return seconds(advance)

        ways = {
            "check": self._median(partial(seconds, check)),
            "check and advance": self._median(partial(seconds, both)),
            "advance, wall": self._median(wall),
        }
        times = take_turns(ways, self._repeats)
        shares = [1 - one / two for one, two in zip(times["check"], times["check and advance"], strict=True)]
        return {"us": spreads(times), "share": Spread.of(shares)}

    def _median(self, once: Callable[[], float]) -> Callable[[], float]:
        def call() -> float:
            for _ in range(3):
                once()
            return 1e6 * float(np.median([once() for _ in range(self._steps)]))

        return call
