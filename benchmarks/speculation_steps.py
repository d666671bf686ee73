"""What a step with candidates takes on a GPU, and what advancing the states that it held takes behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.measure import Spread, seconds, take_turns
from benchmarks.paged_runs import decode_inputs
from hybridge.runtime.engines.held_modes import REPLAY
from hybridge.runtime.engines.paged import PackedInputs, PoolSizes
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine

_BLOCK = 16


@dataclass(frozen=True)
class StepTimes:
    """Medians of ``steps`` steps, ``repeats`` times, of rows of ``past`` tokens and ``candidates`` behind their own."""

    engine: TorchPagedEngine
    candidates: int
    past: int
    steps: int
    repeats: int

    def of_candidates(self, rows: int) -> dict[str, Any]:
        """Microseconds of a step of one token a row, of two, and of one with all candidates."""
        most = 1 + self.candidates
        blocks = -(-(self.past + most) // _BLOCK)
        self.engine.allocate_pools(PoolSizes(rows * blocks, _BLOCK, rows * most))
        self.engine.fill_pools(0.0)
        ways = {str(tokens): self._launches(rows, tokens) for tokens in dict.fromkeys((1, 2, most))}
        times = take_turns(ways, self.repeats)
        return {
            "us": {name: Spread.of(values).to_json() for name, values in times.items()},
            "ratio": Spread.of_ratios(times[str(most)], times["1"]).to_json(),
        }

    def of_replay(self, rows: int) -> dict[str, Any]:
        """Microseconds of a check of all candidates, and with the states advanced by three of five of its tokens.

        One after the other, as in a serving loop: nobody waits for an advance but the step after it. share: of both
        together that the advance takes. wall: from its call until the device is idle.
        """
        engine, most = self.engine, 1 + self.candidates
        engine.prepare_held(rows, most, REPLAY)
        inputs = held_inputs(engine, rows, most, self.past)
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
        times = take_turns(ways, self.repeats)
        shares = [1 - one / two for one, two in zip(times["check"], times["check and advance"], strict=True)]
        return {
            "us": {name: Spread.of(values).to_json() for name, values in times.items()},
            "share": Spread.of(shares).to_json(),
        }

    def _launches(self, rows: int, tokens: int) -> Callable[[], float]:
        inputs = decode_inputs(self.engine, rows, tokens, self.past, 0 if tokens == 1 else 1 + self.candidates)
        return self._median(lambda: seconds(lambda: self.engine.launch(inputs).best_tokens()))

    def _median(self, once: Callable[[], float]) -> Callable[[], float]:
        def call() -> float:
            for _ in range(3):
                once()
            return 1e6 * float(np.median([once() for _ in range(self.steps)]))

        return call


def held_inputs(engine: TorchPagedEngine, rows: int, tokens: int, past: int) -> PackedInputs:
    """A step of ``tokens`` tokens a row after ``past``, whose states wait, in pools of its own."""
    blocks = -(-(past + tokens) // _BLOCK)
    engine.allocate_pools(PoolSizes(rows * blocks, _BLOCK, rows))
    engine.fill_pools(0.0)
    return replace(decode_inputs(engine, rows, tokens, past, 0), held=np.ones(rows, bool))
