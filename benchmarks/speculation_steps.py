"""Times of the torch engine's steps with draft tokens, alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.measure import Spread, seconds, spreads, take_turns
from benchmarks.paged_runs import allocate, step_inputs
from hybridge.runtime.engines.paged import PackedInputs
from hybridge.runtime.engines.rollback.modes import REPLAY, SNAPSHOT
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine


def _deferred_step(engine: TorchPagedEngine, rows: int, tokens: int, past: int) -> PackedInputs:
    """A step of ``tokens`` tokens a row after ``past`` that leaves the recurrent states as they are, in new pools."""
    allocate(engine, rows, past + tokens)
    engine.fill_pools(0.0)
    return step_inputs(engine, _counted_ids(rows, tokens), past, past + tokens, deferred=True)


def _counted_ids(rows: int, tokens: int) -> np.ndarray:
    """Token ids 1, 2, ... [rows, tokens]."""
    return np.arange(1, rows * tokens + 1).reshape(rows, tokens)


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
