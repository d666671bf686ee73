"""Clients of an HTTP server, in a process of their own: chats with streamed answers."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from hybridge.serve.server import run_event_loop

# An answer as it was received, and when its first token came (time.perf_counter).
Answer = tuple[Any, float]


@dataclass(frozen=True)
class Chats:
    """One chat for each of ``prompts``. ``arrivals``: seconds after the beginning; all come at once without."""

    prompts: Sequence[str]
    new_tokens: int
    arrivals: tuple[float, ...] = ()

    async def answered(
        self, answer: Callable[[str, int], Awaitable[Answer]], text: Callable[[Any], str] = "".join
    ) -> Answered:
        """Let each chat arrive at its time, and wait for all. ``answer``: takes a prompt and a number of tokens.

        text: of an answer as it was received; called when all have ended.
        """
        began = time.perf_counter()

        async def at(prompt: str, arrival: float) -> Answer:
            if (left := began + arrival - time.perf_counter()) > 0:
                await asyncio.sleep(left)
            received, first = await answer(prompt, self.new_tokens)
            return received, first - began - arrival

        arrivals = self.arrivals or (0.0,) * len(self.prompts)
        found = await asyncio.gather(*map(at, self.prompts, arrivals))
        seconds = time.perf_counter() - began
        return Answered([text(received) for received, _ in found], [first for _, first in found], seconds)


@dataclass(frozen=True)
class Answered:
    """The answers to chats, the seconds from the arrival of each to its first token, and until all had ended."""

    texts: list[str]
    first: list[float]
    seconds: float

    def late(self) -> float:
        """The 99th of 100 times to the first token."""
        return float(np.percentile(self.first, 99))


@contextmanager
def clients(url: str, model: str) -> Iterator[Callable[[Chats], Answered]]:
    """A process of clients of ``model``. The result sends chats and returns their answers."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_client_process, args=(url, model, there))
    process.start()

    def ask(chats: Chats) -> Answered:
        here.send(chats)
        found: Answered = here.recv()
        return found

    try:
        yield ask
    finally:
        here.send(None)
        process.join()


def _client_process(url: str, model: str, pipe: Connection) -> None:
    while (chats := pipe.recv()) is not None:
        pipe.send(run_event_loop(chats.answered(partial(_stream, url, model), _text)))


class _Reader(asyncio.Protocol):
    """Collects what the server sends until it closes the connection. ``first``: when the first event came."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.received = bytearray()
        self.first = 0.0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if not self.first and b"data: " in self.received:
            self.first = time.perf_counter()

    def connection_lost(self, error: Exception | None) -> None:
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


async def _stream(url: str, model: str, prompt: str, new_tokens: int) -> Answer:
    """A streamed answer with its headers."""
    host, _, port = url.removeprefix("http://").partition(":")
    messages = [{"role": "user", "content": prompt}]
    fields = {"messages": messages, "max_tokens": new_tokens, "ignore_eos": True, "stream": True}
    body = json.dumps({"model": model, **fields}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    event_loop = asyncio.get_running_loop()
    _, reader = await event_loop.create_connection(lambda: _Reader(head.encode() + body), host, int(port))
    await reader.ended
    return bytes(reader.received), reader.first


def _text(received: bytes) -> str:
    events = [json.loads(line[6:]) for line in received.decode().splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
