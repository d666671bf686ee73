"""A task's handle of a request that AsyncLLM serves."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from hybridge.runtime.generation import Generation, Piece
from hybridge.runtime.serving.request import Output


class RequestStream:
    """One running request: an async iterator of its pieces, made by ``AsyncLLM.add``.

    It runs to its end even if it is not read, unless ``cancel`` or ``aclose`` ends it: callers that may leave early
    should read it in ``async with contextlib.aclosing(stream)``.
    RequestError, from the iterator and from ``result``, for a text or conversation that is wrong; EngineError when a
    step with this request failed.
    """

    def __init__(self, answers: int, cancel: Callable[[RequestStream], None]) -> None:
        """``cancel`` is called to end the request early."""
        self._cancel = cancel
        self._left = answers
        self._outputs: deque[Output] = deque()
        self._arrived = asyncio.Event()
        self._pause: asyncio.Future[None] | None = None
        self._cancelled = False

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        if not await self._has_output():
            raise StopAsyncIteration
        return self._taken()

    async def batch(self) -> list[Piece]:
        """Wait for a piece, and return all that have arrived; none at the end. Errors as of the iterator."""
        if not await self._has_output():
            return []
        found = [self._taken()]
        while self._outputs and self._outputs[0].error is None:
            found.append(self._taken())
        return found

    async def pause(self, seconds: float) -> None:
        """Let pieces gather for ``seconds``, or until an answer ends, an error or ``cancel``; not after the end."""
        if self._cancelled or not self._left or any(map(_is_last, self._outputs)):
            return
        event_loop = asyncio.get_running_loop()
        self._pause = event_loop.create_future()
        timer = event_loop.call_later(seconds, self._end_pause)
        try:
            await self._pause
        finally:
            timer.cancel()
            self._pause = None

    def _end_pause(self) -> None:
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)

    async def _has_output(self) -> bool:
        """Wait for the next output; False at the end."""
        while not self._outputs:
            if not self._left or self._cancelled:
                return False
            self._arrived.clear()
            await self._arrived.wait()
        return True

    def _taken(self) -> Piece:
        output = self._outputs.popleft()
        if output.error is not None:
            self._left = 0
            raise output.error
        assert output.piece is not None
        self._left -= output.piece.generation is not None
        return output.piece

    async def result(self) -> Generation:
        """Wait for the end; the first answer, with the others of ``n`` as its alternatives.

        A task that is cancelled while it waits here cancels the request. asyncio.CancelledError when the request was
        cancelled by ``cancel``.
        """
        answers: dict[int, Generation] = {}
        try:
            async for piece in self:
                if piece.generation is not None:
                    answers[piece.choice] = piece.generation
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self._cancelled:
            raise asyncio.CancelledError("the request was cancelled")
        ordered = [answers[choice] for choice in sorted(answers)]
        return replace(ordered[0], alternatives=tuple(ordered[1:]))

    def cancel(self) -> None:
        """End the request; the iterator ends after the pending pieces. Allowed at any time."""
        if not self._cancelled and self._left:
            self._cancelled = True
            self._cancel(self)
            self._arrived.set()
            self._end_pause()

    async def aclose(self) -> None:
        """End the request and the iterator, including pending pieces. Allowed at any time."""
        self.cancel()
        self._cancelled, self._left = True, 0
        self._outputs.clear()

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled or closed."""
        return self._cancelled

    def arrive(self, outputs: Sequence[Output]) -> None:
        """In the event loop: take what the serving loop has made for it."""
        if not self._cancelled:
            self._outputs.extend(outputs)
            self._arrived.set()
            if self._pause is not None and any(map(_is_last, outputs)):
                self._end_pause()


def _is_last(output: Output) -> bool:
    """Whether ``output`` ends an answer."""
    return output.piece is None or output.piece.generation is not None
