"""Calls that take turns on one serving loop; each iterates over its own pieces."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence

from hybridge.artifact.errors import EngineError
from hybridge.runtime.blocks.records import INTERRUPTED
from hybridge.runtime.generation import Piece, Request
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.request import Output, ServingRequest

# Between two steps, so that other calls get their turns.
_NOTHING = Piece(0, "", ())


class PieceStreams:
    """The stream that needs a piece runs the next step; pieces of other streams are queued for them.

    others_wait: whether another call waits for its turn between two steps.
    """

    def __init__(self, loop: ServingLoop, others_wait: Callable[[], bool]) -> None:
        self._loop, self._others_wait = loop, others_wait
        self._inboxes: dict[int, deque[Output]] = {}
        # Requests of other streams whose pieces an interrupt may have lost.
        self._incomplete: set[int] = set()

    def pieces(
        self,
        requests: Sequence[Request],
        priorities: Sequence[int] | None = None,
        namespace: str = "",
        every: bool = True,
    ) -> Generator[Piece]:
        """The pieces of ``requests`` as they come, marked with the index of their request.

        ``priorities`` of each, 0 by default, and the ``namespace`` of all: see ServingRequest. Without
        ``every`` only the pieces that end an answer, which hold all of it, and an empty one where another call waits.

        RequestError, at once, for a request that the pools could never hold. Nothing is computed before the first piece
        is read; closing the iterator early cancels its requests. EngineError when a step failed.
        """
        ranks = priorities or [0] * len(requests)
        submitted = [
            ServingRequest(request, index, ranks[index], namespace, whole=not every)
            for index, request in enumerate(requests)
        ]
        for each in submitted:
            self._loop.check(each)
        return self._stream(submitted, time.perf_counter(), every)

    def _stream(self, submitted: Sequence[ServingRequest], started: float, every: bool) -> Generator[Piece]:
        inbox: deque[Output] = deque()
        left: dict[int, int] = {}
        try:
            for each in submitted:
                id_ = self._loop.add(each, started)
                left[id_] = each.request.params.n
                self._inboxes[id_] = inbox
            while left:
                while not inbox:
                    self._check(left)
                    self._step()
                    if not (every or inbox) and self._others_wait():
                        yield _NOTHING
                self._check(left)
                output = inbox.popleft()
                if output.error is not None:
                    raise output.error
                assert output.piece is not None
                if output.piece.generation is not None:
                    self._count(left, output.request_id)
                yield output.piece
        finally:
            try:
                self._cancel(left)
            except BaseException:
                # Interrupted: the requests that are left would keep their memory.
                self._cancel(left)
                raise

    def _check(self, ids: Iterable[int]) -> None:
        """EngineError if an interrupt may have lost pieces of these requests."""
        if not self._incomplete.isdisjoint(ids):
            raise EngineError(INTERRUPTED)

    def _step(self) -> None:
        """Run a step and hand out its output."""
        try:
            for output in self._loop.step():
                inbox = self._inboxes.get(output.request_id)
                if inbox is not None:
                    inbox.append(output)
                else:
                    # An interrupt came between its start and its record here.
                    self._loop.cancel(output.request_id)
        except BaseException:
            self._incomplete.update(self._inboxes)
            raise

    def _cancel(self, ids: Iterable[int]) -> None:
        for id_ in ids:
            self._loop.cancel(id_)
            self._inboxes.pop(id_, None)
            self._incomplete.discard(id_)

    def _count(self, left: dict[int, int], id_: int) -> None:
        """Count a complete answer of a request."""
        left[id_] -= 1
        if not left[id_]:
            del left[id_], self._inboxes[id_]
