"""One request to a model: its lease and its streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from hybridge.artifact.errors import EngineError
from hybridge.runtime.generation import Generation, Piece
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.request_stream import RequestStream
from hybridge.serve.api_keys import Client
from hybridge.serve.errors import OVERLOADED, TIMEOUT, ApiError
from hybridge.serve.event_stream import EventStream, EventWriter, disconnected
from hybridge.serve.images import Images
from hybridge.serve.merged_streams import merged
from hybridge.serve.model_store import Lease
from hybridge.serve.prompt_trace import PromptTrace
from hybridge.serve.random_ids import random_hex
from hybridge.serve.served_model import ServedModel
from hybridge.serve.service import Reservation, Service
from hybridge.serve.stored_responses import ConnectionTurns

T = TypeVar("T")
# A stream's response starts after this many seconds without a piece; until then, an error has its own HTTP status.
_FIRST_PIECE_SECONDS = 5.0
# Between the events of a stream: seconds times the number of streams, so that several tokens share an event where there
# are many streams. Each event takes a system call and wakes the client. The longer interval holds up to a limit.
_INTERVAL, _LONG_INTERVAL, _LONGEST = 0.001, 0.002, 0.1


class ClientDisconnectedError(Exception):
    """The client closed its connection before the response began."""


class Call:
    """Used in ``async with``; an event stream (``stream``) continues after that, until its end or a disconnect.

    ``pieces`` and ``results`` end all streams with ApiError when the request times out.
    """

    def __init__(self, service: Service, request: Request, lease: Lease, timeout: float | None) -> None:
        self.service, self.request, self._lease = service, request, lease
        self.client: Client = request.state.client
        # RequestMiddleware shows how many were replaced.
        self.images = request.scope["state"]["images"] = Images(service.settings.images)
        # Of a WebSocket connection, otherwise None.
        self.turns: ConnectionTurns | None = request.scope["state"].get("turns")
        self._streams: list[RequestStream] = []
        self._ends: list[Callable[[], None]] = []
        self._expired = self._streaming = self._counted = False
        # Tokens of the prompts and of the answers so far.
        self._tokens = 0
        self._reservation: Reservation | None = None
        self._admitted_ns = 0
        self._timeout = _seconds(service, timeout)
        self._timer = asyncio.get_running_loop().call_later(self._timeout, self._expire)
        self._first: asyncio.Task[Any] | None = None

    @classmethod
    async def begin(cls, request: Request, model: str, timeout: float | None = None) -> Call:
        """ApiError when the model is unknown or cannot be loaded, or not within the time of the request."""
        service: Service = request.app.state.service
        try:
            lease = await service.store.lease(model, _seconds(service, timeout))
        except asyncio.TimeoutError:
            raise ApiError(
                503, f"model {model}: it is being loaded: try again later", OVERLOADED, retry_after=10
            ) from None
        return cls(service, request, lease, timeout)

    async def __aenter__(self) -> Call:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._streaming:
            await self.aclose()

    @property
    def model(self) -> ServedModel:
        """The model, loaded."""
        return self._lease.model

    def earlier_messages(self, response: str | None) -> Sequence[Mapping[str, Any]]:
        """The conversation up to an earlier response; none without one. ApiError 404 if it is not stored."""
        if response is None:
            return ()
        if self.turns is not None and self.turns.response == response:
            return self.turns.messages
        return self.service.responses.messages(self.client.tenant, response)

    async def prepare(self, work: Callable[[], T]) -> T:
        """The result of text ``work``, done off the event loop."""
        return await self.model.llm.prepare(work)

    async def start(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        priority: int | None,
        namespace: str,
        checkpoints: Sequence[int] = (),
    ) -> None:
        """Add a request for each prompt; ApiError 429 when too many wait. checkpoints: see ``AsyncLLM.add``."""
        if (priority or 0) < 0 and self.service.keys is not None:
            # One client must not preempt the others.
            raise ApiError(
                400, f"priority: expected at least 0 where clients have keys, found {priority}", param="priority"
            )
        llm = self.model.llm
        pairs = list(zip(prompts, params, strict=True))
        most_tokens = 0
        for ids, each in pairs:
            room = llm.max_seq_len - len(ids)
            answer = room if each.max_new_tokens is None else min(each.max_new_tokens, room)
            most_tokens += len(ids) + each.n * max(0, answer)
        await self.admit(sum(each.n for each in params), most_tokens)
        for ids, each in pairs:
            self._tokens += len(ids)
            self._streams.append(llm.add(ids, each, None, priority or 0, namespace, checkpoints))

    async def admit(self, sequences: int, most_tokens: int) -> None:
        """Count sequences that start now until the end of the call, and reserve the tokens that they can use at most.

        ApiError 429 when too many wait, or too few of the client's tokens are left.
        """
        self.check_time()
        self._reservation = self.service.reserve_tokens(self.client, most_tokens)
        self._ends.append(await self.model.admit(sequences, self.service.settings.max_waiting))
        self.check_time()
        self._admitted_ns = time.time_ns()

    def check_time(self) -> None:
        """ApiError when the time of the request is over."""
        if self._expired:
            # The request's own limit is not a failure of the server.
            status = 408 if self._timeout < self.service.settings.request_timeout else 504
            raise ApiError(
                status, f"expected an answer within {self._timeout:g} s, found none: ask for fewer tokens", TIMEOUT
            )

    async def in_time(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, which is cancelled when the time of the request is over (ApiError)."""
        left = self._timer.when() - asyncio.get_running_loop().time()
        try:
            return await asyncio.wait_for(work, max(0.0, left))
        except asyncio.TimeoutError:
            self._expired = True
            self.check_time()
            raise

    async def batches(self) -> AsyncIterator[list[Piece]]:
        """The pieces of all prompts with the index of their prompt, as they arrive; for a stream, at a limited rate."""
        answers: dict[int, list[Generation]] = {}
        event_loop = asyncio.get_running_loop()
        try:
            async for index, batch in merged(self._streams):
                began = event_loop.time()
                for piece in batch:
                    self._tokens += len(piece.token_ids)
                    if piece.generation is not None:
                        answers.setdefault(index, []).append(piece.generation)
                yield batch if not index else [piece._replace(index=index) for piece in batch]
                if self._streaming and (left := began + _interval(self.service.streams) - event_loop.time()) > 0:
                    await self._streams[index].pause(left)
        except EngineError:
            self.model.failed = True
            raise
        self.check_time()
        if any(stream.cancelled for stream in self._streams):
            raise ApiError(503, "the request was cancelled: try again", OVERLOADED, retry_after=1)
        self.count(list(answers.values()))

    async def pieces(self) -> AsyncIterator[Piece]:
        """``batches``, piece by piece."""
        async for batch in self.batches():
            for piece in batch:
                yield piece

    async def results(self) -> list[list[Generation]]:
        """All answers to each prompt; ClientDisconnectedError when the client does not wait for them."""
        answers: list[dict[int, Generation]] = [{} for _ in self._streams]

        async def collect() -> None:
            async for piece in self.pieces():
                if piece.generation is not None:
                    answers[piece.index][piece.choice] = piece.generation

        await self.unless_disconnected(collect())
        return [[each[choice] for choice in sorted(each)] for each in answers]

    async def unless_disconnected(self, work: Any) -> Any:
        """The result of the coroutine ``work``; a disconnect cancels it and raises ClientDisconnectedError."""
        working, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(self.request.receive))
        try:
            await asyncio.wait({working, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientDisconnectedError
            return working.result()
        finally:
            working.cancel()
            disconnect.cancel()

    async def stream(self, writer: EventWriter) -> EventStream:
        """The response with the events of ``writer``.

        It begins with the first piece, or after some seconds, so that an error before that has its own HTTP status.
        """
        batches = self.batches()
        first = self._first = asyncio.ensure_future(anext(batches))  # type: ignore[arg-type]
        disconnect = asyncio.ensure_future(disconnected(self.request.receive))
        try:
            await asyncio.wait({first, disconnect}, timeout=_FIRST_PIECE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if disconnect.done() and not first.done():
                raise ClientDisconnectedError
        finally:
            disconnect.cancel()
        if first.done():
            first.result()
        self._streaming = True
        self.service.streams += 1
        self._ends.append(self._stream_ended)

        async def all_batches() -> AsyncIterator[list[Piece]]:
            yield await first
            async for batch in batches:
                yield batch

        return _CallStream(self, all_batches(), writer)

    def count(self, answers: Sequence[Sequence[Generation]]) -> None:
        """Add the answers to each prompt to the metrics, the client's tokens, the log and the trace."""
        self._counted = True
        prompt = sum(len(each[0].prompt_token_ids) for each in answers)
        cached = sum(each[0].cached_tokens for each in answers)
        new = sum(len(answer.token_ids) for each in answers for answer in each)
        for each in answers:
            self.service.metrics.answered(self.model.name, each)
        if self.service.tracing is not None:
            traces = [PromptTrace.of(self.model.name, self._admitted_ns, each) for each in answers]
            self.request.scope["state"]["prompts"] = traces
        self._settle(prompt + new)
        self.log(model=self.model.name, prompt_tokens=prompt, cached_tokens=cached, new_tokens=new)
        if self.service.log.writes_prompts and self.model.llm.tokenizer is not None:
            decode = self.model.llm.tokenizer.decode
            self.log(
                prompts=[decode(each[0].prompt_token_ids, skip_special_tokens=False) for each in answers],
                answers=[[answer.text for answer in each] for each in answers],
            )

    def log(self, **fields: Any) -> None:
        """Add to the request's line in the log."""
        self.request.scope["state"].setdefault("log", {}).update(fields)

    async def aclose(self) -> None:
        """End unfinished requests, and release the model; calling it twice is allowed."""
        self._timer.cancel()
        if self._first is not None:
            self._first.cancel()
        for stream in self._streams:
            await stream.aclose()
        if self._streams and not self._counted:
            self._counted = True
            self.service.metrics.abandoned(self.model.name, len(self._streams))
            self._settle(self._tokens)
            self.log(model=self.model.name, abandoned_tokens=self._tokens)
        if self._reservation is not None:
            self._settle(0)
        for end in self._ends:
            end()
        self._ends.clear()
        self._lease.release()

    def _settle(self, tokens: int) -> None:
        """Count the tokens that the client used, and end the reservation."""
        self.service.use_tokens(self.client, self._reservation, tokens)
        self._reservation = None

    def _stream_ended(self) -> None:
        self.service.streams -= 1

    def _expire(self) -> None:
        self._expired = True
        for stream in self._streams:
            stream.cancel()


class _CallStream(EventStream):
    """The event stream of a call; ends the call when the stream ends or fails to start."""

    def __init__(self, call: Call, batches: AsyncIterator[Sequence[Piece]], writer: EventWriter) -> None:
        super().__init__(call.request, batches, writer, call.service)
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await asyncio.shield(self._call.aclose())


def _seconds(service: Service, timeout: float | None) -> float:
    """The time of a request."""
    limit = float(service.settings.request_timeout)
    return min(limit, timeout or limit)


def _interval(streams: int) -> float:
    """Least seconds between two events of a stream, when there are ``streams``."""
    return max(streams * _INTERVAL, min(streams * _LONG_INTERVAL, _LONGEST))


def new_id(kind: str) -> str:
    """An id of a response or of one of its parts."""
    return f"{kind}-{random_hex()}"
