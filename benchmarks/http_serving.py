"""The HTTP server against its own AsyncLLM called in the same process: streams of a chat, all at a time."""

from __future__ import annotations

import asyncio
import io
import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.artifacts import DEMO_CHECKPOINT, exported, scratch_folder
from benchmarks.measure import Spread, spreads, take_turns
from benchmarks.runner import Gate, Report, Target, require
from hybridge.runtime.async_llm import AsyncLLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.serve.request_log import RequestLog
from hybridge.serve.server import HttpServer
from hybridge.serve.settings import ModelSettings, ServeSettings

LEAST_RATIO, MOST_HOST_MICROSECONDS = 0.9, 150.0
_NAME = "demo"


@dataclass(frozen=True)
class HttpServingSettings:
    """``streams`` chats at a time, each of ``new_tokens``.

    The clients are one other process on the same cores, so their processor time counts against the server.
    """

    streams: int = 32
    new_tokens: int = 150
    threads: int = 2
    repeats: int = 5


def run(settings: HttpServingSettings) -> Report:
    """Compare all answers, then measure throughput and the processor time of the server's event loop."""
    prompts = [f"Tell me of the sea, number {number}." for number in range(settings.streams)]
    with scratch_folder() as work:
        options = {"layout": "paged", "max_batch_size": settings.streams, "max_seq_len": settings.new_tokens + 64}
        folder = exported(DEMO_CHECKPOINT, work / "paged", **options)
        with _serving(folder, settings.threads) as (server, clock), _clients(server.url) as ask:
            own = _Own(server.service.store.loaded[0].llm, settings, prompts)
            answers = own.answers()
            wrong = sum(one != other for one, other in zip(ask(prompts, settings.new_tokens)[1], answers, strict=True))
            gates = require(Gate("answers that differ from those of AsyncLLM", float(wrong), 0.0))
            host: list[float] = []

            def over_http() -> float:
                began = time.clock_gettime(clock)
                seconds, _ = ask(prompts, settings.new_tokens)
                host.append(time.clock_gettime(clock) - began)
                return seconds

            times = take_turns({"AsyncLLM": own.seconds, "HTTP": over_http}, settings.repeats)
    tokens = settings.streams * settings.new_tokens
    repeats = settings.repeats
    own_loop = Spread.of(own.loop_seconds[-repeats:], 1e6 / tokens)
    loop = Spread.of(host[-repeats:], 1e6 / tokens)
    ratio = Spread.of_ratios(times["AsyncLLM"], times["HTTP"])
    results = {
        "tokens_per_second": spreads({name: [tokens / each for each in values] for name, values in times.items()}),
        "ratio": ratio,
        "event_loop_us_per_token": {"AsyncLLM": own_loop, "HTTP": loop},
    }
    above = loop.median - own_loop.median
    targets = (
        Target(f"throughput of {settings.streams} streams over AsyncLLM's", ratio.median, "at least", LEAST_RATIO, "x"),
        Target("event loop above AsyncLLM's, per token", above, "at most", MOST_HOST_MICROSECONDS, "us"),
    )
    return Report(gates, results, targets)


class _Own:
    """AsyncLLM with one task for each chat. ``loop_seconds``: processor time of its event loop in each run."""

    def __init__(self, llm: AsyncLLM, settings: HttpServingSettings, prompts: Sequence[str]) -> None:
        self._llm = llm
        self._params = SamplingParams(max_new_tokens=settings.new_tokens, ignore_eos=True)
        self._prompts = prompts
        self.loop_seconds: list[float] = []

    def answers(self) -> list[str]:
        return asyncio.run(self._all())

    def seconds(self) -> float:
        began = time.perf_counter()
        self.answers()
        return time.perf_counter() - began

    async def _all(self) -> list[str]:
        began = time.thread_time()
        found = await asyncio.gather(*map(self._one, self._prompts))
        self.loop_seconds.append(time.thread_time() - began)
        return list(found)

    async def _one(self, prompt: str) -> str:
        return "".join([piece.text async for piece in self._llm.chat(prompt, self._params)])


@contextmanager
def _serving(folder: Path, threads: int) -> Iterator[tuple[HttpServer, int]]:
    """A server in a thread, and the clock of that thread's processor time."""
    models = [ModelSettings(_NAME, folder, preload=True, threads=threads)]
    server = HttpServer(ServeSettings(port=0), models, log=RequestLog(False, io.StringIO()))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.service.store.loaded:
            time.sleep(0.05)
        assert thread.ident is not None
        yield server, time.pthread_getcpuclockid(thread.ident)
    finally:
        server.stop()
        thread.join()


@contextmanager
def _clients(url: str) -> Iterator[Callable[[Sequence[str], int], tuple[float, list[str]]]]:
    """A process of clients. The result sends prompts; it returns the seconds until all answers were read, and these."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_client_process, args=(url, there))
    process.start()

    def ask(prompts: Sequence[str], new_tokens: int) -> tuple[float, list[str]]:
        here.send((list(prompts), new_tokens))
        seconds, answers = here.recv()
        return seconds, answers

    try:
        yield ask
    finally:
        here.send(None)
        process.join()


def _client_process(url: str, pipe: Connection) -> None:
    while (work := pipe.recv()) is not None:
        prompts, new_tokens = work

        async def all_streams(prompts: Sequence[str] = prompts, new_tokens: int = new_tokens) -> list[str]:
            return await asyncio.gather(*(_stream(url, prompt, new_tokens) for prompt in prompts))

        began = time.perf_counter()
        answers = asyncio.run(all_streams())
        pipe.send((time.perf_counter() - began, answers))


async def _stream(url: str, prompt: str, new_tokens: int) -> str:
    """The text of a streamed answer, parsed after its end."""
    host, _, port = url.removeprefix("http://").partition(":")
    messages = [{"role": "user", "content": prompt}]
    fields = {"messages": messages, "max_tokens": new_tokens, "ignore_eos": True, "stream": True}
    body = json.dumps({"model": _NAME, **fields}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + body)
    data = await reader.read()
    writer.close()
    events = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events)
