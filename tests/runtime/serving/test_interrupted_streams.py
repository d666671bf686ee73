"""An interrupt at any line of one open stream: others end right or with an error, and later ones are right."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import FrameType
from typing import Any

from hybridge.artifact.errors import EngineError
from hybridge.runtime.generation import Piece, Request
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.stream import PieceStreams
from tests.runtime.serving.interruption import Lines
from tests.runtime.serving.toy_loop import toy_loop
from tests.runtime.toy_paged_engine import toy_greedy

SWEPT = {function.__code__ for function in (PieceStreams._stream, PieceStreams._step, PieceStreams._cancel)}
FIRST, OTHER, NEW = [1, 2, 3, 4, 5], [4, 4, 1], 6


class OwnLines(Lines):
    """Lines of the functions themselves: what they call has a test of its own."""

    def _call(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        return super()._call(frame, event, argument) if frame.f_code in SWEPT else None


class Opened:
    """One stream with a piece that was read, and one that an interrupt ends, over a loop of toys."""

    def __init__(self) -> None:
        self.loop, self.engine = toy_loop(max_rows=3)
        self.streams = PieceStreams(self.loop, lambda: False)
        self.free = self.loop.scheduler.manager.pool.available
        self.other = self.streams.pieces([Request(tuple(OTHER), SamplingParams(), NEW)])
        self.read: list[Piece] = [next(self.other)]

    def interrupted(self) -> None:
        with contextlib.closing(self.streams.pieces([Request(tuple(FIRST), SamplingParams(), NEW)])) as pieces:
            for _ in pieces:
                pass

    def check(self) -> None:
        expected = toy_greedy(self.engine.config, OTHER, NEW)
        with contextlib.suppress(EngineError):
            self.read += self.other
            assert [token for piece in self.read for token in piece.token_ids] == expected
        self.other.close()
        assert self._answer(FIRST) == toy_greedy(self.engine.config, FIRST, NEW)
        while self.loop.busy:
            self.loop.step()
        self.loop.scheduler.check_integrity()
        assert not self.loop.scheduler.sequences and self.loop.scheduler.manager.pool.available == self.free

    def _answer(self, prompt: list[int]) -> list[int]:
        pieces = self.streams.pieces([Request(tuple(prompt), SamplingParams(), NEW)])
        return [token for piece in pieces for token in piece.token_ids]


def test_other_streams_and_later_ones_outlive_an_interrupt_at_any_line() -> None:
    whole = OwnLines(SWEPT)
    whole.during(Opened().interrupted)
    for at in range(1, whole.count + 1):
        opened, lines = Opened(), OwnLines(SWEPT, at=at)
        with contextlib.suppress(KeyboardInterrupt):
            lines.during(opened.interrupted)
        try:
            opened.check()
        except BaseException as error:
            raise AssertionError(f"after an interrupt at {lines.where}, line {at}") from error
