"""The asyncio interface: many requests at once on an artifact of layout paged."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from runtime.engines.factory import AUTO, EngineOptions
from runtime.engines.paged import PagedEngine
from runtime.generation import Generation, Piece, Request
from runtime.generation.request import Prompt
from runtime.model_text import ModelText
from runtime.prefix_cache.metrics import CacheReport
from runtime.sampling import SamplingParams
from runtime.serving.cache_control import CacheControl, conversation_tokens
from runtime.serving.open import open_loop, open_paged_engine
from runtime.serving.open_drafter import with_opened_drafter
from runtime.serving.pinned import PIN_TRIES, PinnedPrefix, PrefixEvictedError, read_prefixes
from runtime.serving.request import Output, ServingRequest
from runtime.serving.sessions import Session
from runtime.serving.settings import ServingSettings
from runtime.serving.worker import ServingWorker

T = TypeVar("T")


class RequestStream:
    """One request under way: an async iterator of its pieces, made by ``AsyncLLM.add``.

    It runs on whether or not anybody reads it, until its end, ``cancel`` or ``aclose``: who may leave early, as a
    generator or a task may, reads it in ``async with contextlib.aclosing(stream)``.
    EngineError, from the iterator and from ``result``, when a step failed that the request took part in.
    """

    def __init__(self, owner: AsyncLLM, answers: int) -> None:
        self._owner = owner
        self._left = answers
        self._outputs: deque[Output] = deque()
        self._arrived = asyncio.Event()
        self._cancelled = False

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        while not self._outputs:
            if not self._left or self._cancelled:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
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
        """End the request; the iterator ends after the pieces that are there already. Allowed at any time."""
        if not self._cancelled and self._left:
            self._cancelled = True
            self._owner._cancel(self)
            self._arrived.set()

    async def aclose(self) -> None:
        """End the request and the iterator, pieces that are there already included. Allowed at any time."""
        self.cancel()
        self._cancelled, self._left = True, 0
        self._outputs.clear()

    def _arrive(self, outputs: Sequence[Output]) -> None:
        if not self._cancelled:
            self._outputs.extend(outputs)
            self._arrived.set()


class AsyncLLM:
    """An artifact of layout paged that serves any number of tasks of one event loop; the engine has its own thread.

    ``engine`` is a name or a PagedEngine over the same artifact; the other arguments are those of ``LLM``.

        async with AsyncLLM("out") as llm:
            async for piece in llm.add("Once upon a time", max_new_tokens=64):
                print(piece.text, end="")
    """

    def __init__(
        self,
        path: str | Path,
        engine: str | PagedEngine = AUTO,
        max_batch_size: int | None = None,
        max_seq_len: int | None = None,
        threads: int | None = None,
        serving: ServingSettings | None = None,
    ) -> None:
        """ArtifactError: not a valid artifact. EngineError: no such engine, or its layout is not paged."""
        folder = Path(path)
        options = EngineOptions(threads)
        with ExitStack() as opened:
            if isinstance(engine, str):
                engine = opened.enter_context(closing(open_paged_engine(folder, engine, options)))
            self.engine = engine
            self.config = self.engine.config.require_logits()
            self._text = text = ModelText(folder, self.config)
            self.tokenizer, self.chat_template = text.tokenizer, text.chat_template
            self.eos_token_ids = text.eos_token_ids
            settings = (serving or ServingSettings()).limited(max_batch_size, max_seq_len)
            settings, self._drafter = with_opened_drafter(self.engine, settings, text)
            if self._drafter is not None:
                opened.enter_context(closing(self._drafter))
            self.loop = open_loop(self.engine, settings, text)
            self.max_seq_len = self.loop.shape.max_seq_len
            self._cache = CacheControl(self.loop, folder)
            self._pending: dict[RequestStream, list[Output]] = {}
            self._event_loop: asyncio.AbstractEventLoop | None = None
            self._worker = ServingWorker(self.loop, self._flush)
            opened.pop_all()

    @property
    def recommended_sampling(self) -> SamplingParams:
        """What the checkpoint's generation_config.json asks for; never applied unless it is passed to a call."""
        return self._text.recommended_sampling

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def close(self) -> None:
        """End all requests (with an EngineError) and release the engine; calling it twice is allowed."""
        self._worker.close()
        if self._drafter is not None:
            self._drafter.close()
        self.engine.close()

    def add(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        max_new_tokens: int | None = None,
        priority: int = 0,
        namespace: str = "",
    ) -> RequestStream:
        """Let a prompt (text or token ids) take part from the next step on; call it from a task.

        ``sampling`` and ``max_new_tokens`` as in ``LLM.generate``. ``priority``: lower first, where the settings'
        policy knows priorities. ``namespace``: computed blocks are shared with prompts of the same one only.
        RequestError, at once, names the prompt or parameter that is wrong, or what the pools could never hold.
        """
        return self._add(self._request(prompt, sampling, max_new_tokens, True), priority, namespace)

    async def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        max_new_tokens: int | None = None,
        priority: int = 0,
        namespace: str = "",
    ) -> Generation:
        """``add``, and wait for the whole answer. Cancelling the task that waits cancels the request."""
        return await self.add(prompt, sampling, max_new_tokens, priority, namespace).result()

    def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        sampling: SamplingParams | None = None,
        max_new_tokens: int | None = None,
        priority: int = 0,
        namespace: str = "",
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> RequestStream:
        """``add`` for a conversation, through the checkpoint's chat template; a text is one message of the user."""
        given = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        text = self.chat_template.render(given, tools, **variables)
        return self._add(self._request(text, sampling, max_new_tokens, False), priority, namespace)

    async def cache_prefix(
        self, prompt: Prompt | Sequence[Mapping[str, Any]], name: str | None = None, namespace: str = ""
    ) -> PinnedPrefix:
        """Compute ``prompt`` once and keep it until ``drop_prefix``: prompts that begin with it start from there.

        As ``LLM.cache_prefix`` for paged artifacts; errors as there.
        """
        request = self._text.prefix_request(prompt, self.max_seq_len, name)
        ids, tries = request.prompt_ids, 0
        while True:
            await self._add(request, 0, namespace).result()
            tries += 1
            try:
                return await self._between_steps(lambda: self._cache.pin(ids, name, _computed_already, namespace))
            except PrefixEvictedError:  # by others, before its turn came
                if tries == PIN_TRIES:
                    raise

    async def cache_prefixes(self, path: str | Path, namespace: str = "") -> list[PinnedPrefix]:
        """``cache_prefix`` for all of a JSON file {"prefixes": {name: text, token ids or messages}}."""
        return [await self.cache_prefix(prompt, name, namespace) for name, prompt in read_prefixes(Path(path))]

    async def drop_prefix(self, name: str) -> None:
        """Let a prefix go; RequestError when there is none of that name."""
        await self._between_steps(lambda: self._cache.drop(name))

    async def save_session(
        self, path: str | Path, conversation: Generation | Sequence[int], namespace: str = ""
    ) -> Session:
        """As ``LLM.save_session``."""
        tokens = conversation_tokens(conversation)
        return await self._between_steps(lambda: self._cache.save(Path(path), tokens, namespace))

    async def load_session(self, path: str | Path) -> Session:
        """As ``LLM.load_session``; the session keeps its namespace."""
        return await self._between_steps(lambda: self._cache.load(Path(path)))

    async def prefix_cache_report(self) -> CacheReport:
        """As ``LLM.prefix_cache_report``."""
        return await self._between_steps(self._cache.report)

    async def _between_steps(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._worker.call(work))

    def _request(
        self, prompt: Any, sampling: SamplingParams | None, max_new_tokens: int | None, special_tokens: bool
    ) -> Request:
        params = sampling or SamplingParams()
        if max_new_tokens is not None:
            params = replace(params, max_new_tokens=max_new_tokens)
        return self._text.request(prompt, params, self.max_seq_len, "prompt", special_tokens)

    def _add(self, request: Request, priority: int, namespace: str) -> RequestStream:
        self._event_loop = asyncio.get_running_loop()
        stream = RequestStream(self, request.params.n)
        asked = ServingRequest(request, 0, priority, namespace)

        def deliver(output: Output) -> None:
            self._pending.setdefault(stream, []).append(output)

        self._worker.add(stream, asked, time.perf_counter(), deliver)
        return stream

    def _cancel(self, stream: RequestStream) -> None:
        self._worker.cancel(stream)

    def _flush(self) -> None:
        """In the worker's thread: hand what a step gave to all streams over to the event loop, in one call."""
        pending, self._pending = self._pending, {}
        event_loop = self._event_loop
        if event_loop is not None and not event_loop.is_closed():
            event_loop.call_soon_threadsafe(_arrive, pending)


def _computed_already() -> None:
    """The request before it has."""


def _arrive(pending: Mapping[RequestStream, list[Output]]) -> None:
    for stream, outputs in pending.items():
        stream._arrive(outputs)
