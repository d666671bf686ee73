"""The asyncio interface: many requests at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from hybridge.artifact.call_arguments import checked_path, known_arguments
from hybridge.artifact.settings import checked_choice
from hybridge.runtime.generation import Generation, Request
from hybridge.runtime.generation.call import (
    call_of,
    checked_checkpoints,
    checked_namespace,
    checked_priority,
    split_options,
)
from hybridge.runtime.generation.prompts import Prompt, prompt_of, snapshot
from hybridge.runtime.loaded_artifact import LoadedArtifact
from hybridge.runtime.prefix_cache.metrics import CacheReport
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.score import Score, ScoreRequest
from hybridge.runtime.serving.cache_control import conversation_tokens
from hybridge.runtime.serving.memory_view import MemoryView, memory_view
from hybridge.runtime.serving.pinned import PIN_TRIES, PinnedPrefix, PrefixEvictedError, read_prefixes
from hybridge.runtime.serving.prompt_pooling import MEAN, POOLINGS
from hybridge.runtime.serving.request import Output, ServingRequest
from hybridge.runtime.serving.request_stream import RequestStream
from hybridge.runtime.serving.sessions import Session
from hybridge.runtime.serving.text_queue import TextQueue
from hybridge.runtime.serving.worker import ServingWorker, ended_before_the_request

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hybridge.runtime.generation.call import Call, OtherNames

T = TypeVar("T")
# Longest prompt of token ids that is checked in the event loop.
_FEW_TOKENS = 1024


@known_arguments
class AsyncLLM(LoadedArtifact):
    """An artifact that serves any number of tasks of one event loop; the engine has its own thread.

    The arguments are those of ``LLM``.

        async with AsyncLLM("out") as llm:
            async for piece in llm.add("Once upon a time", max_new_tokens=64):
                print(piece.text, end="")
    """

    def _on_open(self) -> None:
        self._pending: dict[RequestStream, list[Output]] = {}
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._texts = TextQueue()
        self._worker = ServingWorker(self.loop, self._flush, self._texts)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def close(self) -> None:
        """End all requests (with an EngineError) and release the engine; may be called twice."""
        self._worker.close()
        self._texts.close()
        self._release()

    def add(
        self,
        prompt: Prompt | None = None,
        sampling: SamplingParams | None = None,
        max_new_tokens: int | None = None,
        priority: int = 0,
        namespace: str = "",
        checkpoints: Sequence[int] = (),
        **names: Unpack[OtherNames],
    ) -> RequestStream:
        """Add a prompt (text or token ids), which starts with the next step; call it from a task.

        ``sampling``, ``max_new_tokens`` and other ``names`` as in ``LLM.generate``. ``priority``: lower first, if the
        settings' policy uses priorities. ``namespace``: cached prefixes are shared only within one. ``checkpoints``:
        numbers of prompt tokens after which a radix cache stores a state, such as the ends of a chat's messages.

        A prompt is read off the event loop, in the order of the calls, so an array of token ids must not change before
        the first piece. RequestError names invalid arguments and too many token ids at once; all else that is wrong
        with a prompt, or with a request that the pools could never hold, is raised by the stream.
        """
        call = call_of(sampling, max_new_tokens, {**names, "priority": priority, "namespace": namespace})
        return self._called(prompt, call, checkpoints)

    async def generate(
        self,
        prompt: Prompt | None = None,
        sampling: SamplingParams | None = None,
        max_new_tokens: int | None = None,
        priority: int = 0,
        namespace: str = "",
        **names: Unpack[OtherNames],
    ) -> Generation:
        """``add``, and wait for the whole answer. Cancelling the waiting task cancels the request."""
        call = call_of(sampling, max_new_tokens, {**names, "priority": priority, "namespace": namespace})
        return await self._called(prompt, call, whole=True).result()

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
        """``add`` for a conversation, through the checkpoint's chat template; a text is one message of the user.

        The messages are copied off the event loop: what they contain must not change before the first piece. Errors of
        the template are raised by the stream.
        """
        names, variables = split_options(variables)
        call = call_of(sampling, max_new_tokens, {**names, "priority": priority, "namespace": namespace})
        call.refuse_token_ids()
        given = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        text = self.chat_template.rendering(given, tools, **variables)
        params = call.params(1)[0]
        checked_priority(priority)
        return self._add(
            lambda: self._text.request(text(), params, self.max_seq_len, special_tokens=False),
            params.n,
            priority,
            namespace,
        )

    async def score(self, prompt: Prompt, continuation: str | Sequence[int] | None = None) -> Score:
        """Like ``LLM.score`` for one prompt."""
        given = prompt_of(prompt)
        scored = await self.prepare(lambda: ScoreRequest.of(self._text, given, continuation, self.max_seq_len))
        found = await self._computed(scored.request, "")
        return await self.prepare(lambda: scored.score(found))

    async def embed(self, prompt: Prompt, pooling: str = MEAN, priority: int = 0, namespace: str = "") -> Generation:
        """The ``hidden`` state of a prompt: the mean over its tokens, or that of its last one (``pooling`` "last").

        It is the output of the last layer, before the norm that follows. RequestError as of ``generate``, and without
        ``ServingSettings.hidden_states``. A mean computes the whole prompt; else the prefix cache is used.
        """
        checked_choice("pooling", pooling, POOLINGS)
        checked_namespace(namespace)
        given = snapshot(prompt_of(prompt), self.max_seq_len)
        work = partial(self._text.request, given, SamplingParams(max_new_tokens=1), self.max_seq_len)
        return await self._add(work, 1, checked_priority(priority), namespace, pooling=pooling).result()

    async def cache_prefix(
        self, prompt: Prompt | Sequence[Mapping[str, Any]], name: str | None = None, namespace: str = ""
    ) -> PinnedPrefix:
        """Compute ``prompt`` once and keep it until ``drop_prefix``: prompts that begin with it start from there.

        Like ``LLM.cache_prefix``, with the same errors.
        """
        checked_namespace(namespace)
        request = await self.prepare(lambda: self._text.prefix_request(prompt, self.max_seq_len, name))
        ids, tries = request.prompt_ids, 0
        while True:
            for part in self._cache.parts(request):
                await self._computed(part, namespace)
            tries += 1
            try:
                return await self._between_steps(lambda: self._cache.pin(ids, name, _computed_already, namespace))
            except PrefixEvictedError:  # by another task, before its turn
                if tries == PIN_TRIES:
                    raise

    async def cache_prefixes(self, path: str | Path, namespace: str = "") -> list[PinnedPrefix]:
        """``cache_prefix`` for all of a JSON file {"prefixes": {name: text, token ids or messages}}."""
        prefixes = await self.prepare(lambda: read_prefixes(checked_path("path", path)))
        return [await self.cache_prefix(prompt, name, namespace) for name, prompt in prefixes]

    async def drop_prefix(self, name: str) -> None:
        """Unpin a prefix; RequestError if there is none of that name."""
        await self._between_steps(lambda: self._cache.drop(name))

    async def reset_prefix_cache(self) -> None:
        """Like ``LLM.reset_prefix_cache``."""
        await self._between_steps(self._cache.reset)

    async def save_session(
        self, path: str | Path, conversation: Generation | Sequence[int], namespace: str = ""
    ) -> Session:
        """Like ``LLM.save_session``."""
        tokens = await self.prepare(lambda: conversation_tokens(conversation))
        return await self._between_steps(lambda: self._cache.save(checked_path("path", path), tokens, namespace))

    async def load_session(self, path: str | Path) -> Session:
        """Like ``LLM.load_session``; the session keeps its namespace."""
        return await self._between_steps(lambda: self._cache.load(checked_path("path", path)))

    async def seconds_until_free_row(self) -> float:
        """An upper bound of the time until a request added now would start: none of those before it ends early."""
        return await self._between_steps(lambda: self.loop.seconds_until_free_row)

    async def prefix_cache_report(self) -> CacheReport:
        """Like ``LLM.prefix_cache_report``."""
        return await self._between_steps(self._cache.report)

    async def memory_view(self) -> MemoryView:
        """The current contents of blocks, slots and the prefix tree."""
        return await self._between_steps(lambda: memory_view(self.loop))

    async def prepare(self, work: Callable[[], T]) -> T:
        """The result of text ``work``, such as a call of ``tokenizer``, done off the event loop."""
        self._worker.check_open()
        return await asyncio.wrap_future(self._texts.submit(work))

    def _called(
        self, prompt: Prompt | None, call: Call, checkpoints: Sequence[int] = (), whole: bool = False
    ) -> RequestStream:
        """``add`` with checked names. whole: as of ServingRequest."""
        params = call.params(1)[0]
        given = snapshot(prompt_of(prompt, call.token_ids), self.max_seq_len)
        priority, ends = checked_priority(call.priority), checked_checkpoints(checkpoints)
        work = partial(self._text.request, given, params, self.max_seq_len)
        at_once = isinstance(given, tuple) and len(given) <= _FEW_TOKENS
        return self._add(work, params.n, priority, call.namespace, ends, at_once=at_once, whole=whole)

    async def _computed(self, request: Request, namespace: str) -> Generation:
        """The answer to a request that needs no more text work."""
        return await self._add(lambda: request, 1, 0, namespace, whole=True).result()

    async def _between_steps(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._worker.call(work))

    def _add(
        self,
        request: Callable[[], Request],
        answers: int,
        priority: int,
        namespace: str,
        checkpoints: tuple[int, ...] = (),
        pooling: str | None = None,
        at_once: bool = False,
        whole: bool = False,
    ) -> RequestStream:
        """Add what ``request`` makes, in the thread that tokenizes; its errors are raised by the stream.

        at_once: it takes microseconds, and may run in the event loop.
        """
        self._worker.check_open()
        self._event_loop = asyncio.get_running_loop()
        stream, started = RequestStream(answers, self._worker.cancel), time.perf_counter()

        def make() -> ServingRequest | None:
            if stream.cancelled:
                return None
            return ServingRequest(request(), 0, priority, namespace, checkpoints, pooling, whole)

        add = self._texts.add_at_once if at_once else self._texts.add
        add(make, lambda made: self._admit(stream, made, started))
        return stream

    def _admit(self, stream: RequestStream, made: Future[Any], started: float) -> None:
        """Runs in the event loop, so that a cancelled request does not start."""
        if stream.cancelled:
            return
        try:
            submitted = made.result()
            if submitted is not None:
                self._start(stream, submitted, started)
        except Exception as error:
            stream.arrive([Output(-1, error=ended_before_the_request() if self._worker.closed else error)])

    def _start(self, stream: RequestStream, submitted: ServingRequest, started: float) -> None:
        def deliver(output: Output) -> None:
            self._pending.setdefault(stream, []).append(output)

        self._worker.add(stream, submitted, started, deliver)

    def _flush(self) -> None:
        """Runs in the worker's thread: passes a step's output for all streams to the event loop in one call."""
        pending, self._pending = self._pending, {}
        event_loop = self._event_loop
        if event_loop is not None and not event_loop.is_closed():
            event_loop.call_soon_threadsafe(_arrive, pending)


def _computed_already() -> None:
    """Work of a request whose prefix another request has already computed."""


def _arrive(pending: Mapping[RequestStream, list[Output]]) -> None:
    for stream, outputs in pending.items():
        stream.arrive(outputs)
