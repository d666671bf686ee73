"""RequestStream: pieces gather while its reader pauses, but the end of an answer is not delayed."""

import asyncio
import time
from collections.abc import Callable, Sequence

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.generation import Generation, Piece
from hybridge.runtime.generation.results import Timings
from hybridge.runtime.serving.request import Output
from hybridge.runtime.serving.request_stream import RequestStream

LONG = 60.0
MIDDLE = Output(0, Piece(0, "a", (1,)))
ANSWER = Generation("ab", (1, 2), (0,), "length", None, None, 0, Timings(0.0, 0.0, 2))
LAST = Output(0, Piece(0, "b", (2,), None, "length", ANSWER))
ERROR = Output(0, error=EngineError("the step failed"))


def paused(seconds: float, *events: Callable[[RequestStream], object]) -> float:
    """Seconds of a pause during which ``events`` happen."""

    async def work() -> float:
        stream = RequestStream(1, lambda _: None)
        began = time.perf_counter()
        task = asyncio.ensure_future(stream.pause(seconds))
        for event in events:
            await asyncio.sleep(0)
            event(stream)
        await task
        return time.perf_counter() - began

    return asyncio.run(work())


def arrival(outputs: Sequence[Output]) -> Callable[[RequestStream], object]:
    return lambda stream: stream.arrive(outputs)


@pytest.mark.parametrize(
    "event", [arrival([MIDDLE, LAST]), arrival([ERROR]), RequestStream.cancel], ids=["last", "error", "cancelled"]
)
def test_a_pause_ends_with_the_answer(event: Callable[[RequestStream], object]) -> None:
    assert paused(LONG, event, event) < LONG / 2


def test_other_pieces_gather() -> None:
    assert paused(0.02, arrival([MIDDLE]), arrival([MIDDLE])) >= 0.02


@pytest.mark.parametrize("event", [arrival([LAST]), RequestStream.cancel], ids=["last", "cancelled"])
def test_there_is_no_pause_after_the_end(event: Callable[[RequestStream], object]) -> None:
    async def work() -> None:
        stream = RequestStream(1, lambda _: None)
        event(stream)
        await asyncio.wait_for(stream.pause(LONG), LONG / 2)

    asyncio.run(work())


def test_there_is_no_pause_after_the_last_piece_was_read() -> None:
    async def work() -> None:
        stream = RequestStream(1, lambda _: None)
        arrival([MIDDLE, LAST])(stream)
        assert len(await stream.batch()) == 2
        await asyncio.wait_for(stream.pause(LONG), LONG / 2)

    asyncio.run(work())
