"""The HTTP server against its own AsyncLLM called in the same process, and against llama.cpp's server: chats all at a
time, and at random times."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.artifacts import DEMO_CHECKPOINT, exported, scratch_folder
from benchmarks.http_clients import Answer, Answered, Chats, clients
from benchmarks.llama_server import llama_server, missing_server
from benchmarks.measure import Spread, note, spreads, take_turns
from benchmarks.runner import Gate, Report, Target, require
from benchmarks.traffic import poisson_arrivals
from hybridge.runtime.async_llm import AsyncLLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.serve.request_log import RequestLog
from hybridge.serve.server import HttpServer
from hybridge.serve.settings import ModelSettings, ServeSettings

LEAST_RATIO, MOST_HOST_MICROSECONDS, MOST_FIRST_TOKEN_RATIO = 0.9, 150.0, 1.2
_NAME = "demo"
# Repeats of all requests at once.
_AT_ONCE = 3


@dataclass(frozen=True)
class HttpServingSettings:
    """``streams`` chats at a time, each of ``new_tokens``, and ``many_streams`` of ``short`` tokens; then ``requests``
    of ``short`` tokens at random times, others in each repeat.

    load: the arrival rate of these over that at which the slower of both ways finishes them when all come at once,
    measured just before. The clients are one other process on the same cores, so their processor time counts against
    the server. llama_cpp: a built checkout of llama.cpp, whose server gets the same chats; without one, it is left out.
    """

    llama_cpp: str | None = None
    streams: int = 32
    new_tokens: int = 150
    short: int = 48
    many_streams: int = 64
    requests: int = 400
    load: float = 0.7
    threads: int = 2
    repeats: int = 5


def run(settings: HttpServingSettings) -> Report:
    """Compare all answers, then measure throughput, processor time of the server's event loop, and latencies."""
    streams, new_tokens, repeats = settings.streams, settings.new_tokens, settings.repeats
    many = settings.many_streams
    missing = missing_server(settings.llama_cpp)
    if missing is not None:
        note(f"llama-server is left out: {missing}")
    prompts = [f"Tell me of the sea, number {number}." for number in range(max(many, streams, settings.requests))]
    together = Chats(prompts[:streams], new_tokens)
    with scratch_folder() as work:
        rows, tokens = max(streams, many), max(new_tokens, settings.short) + 64
        options = {"layout": "paged", "max_batch_size": rows, "max_seq_len": tokens}
        folder = exported(DEMO_CHECKPOINT, work / "paged", **options)
        with _serving(folder, settings.threads, len(prompts)) as (server, clock), clients(server.url, _NAME) as ask:
            own = _Own(server.service.store.loaded[0].llm)
            pairs = zip(ask(together).texts, own.answers(together).texts, strict=True)
            wrong = sum(one != other for one, other in pairs)
            gates = require(Gate("answers that differ from those of AsyncLLM", float(wrong), 0.0))
            host: list[float] = []

            def over_http(chats: Chats) -> float:
                began = time.clock_gettime(clock)
                seconds = ask(chats).seconds
                host.append(time.clock_gettime(clock) - began)
                return seconds

            def both(chats: Chats) -> dict[str, list[float]]:
                ways = {"AsyncLLM": lambda: own.answers(chats).seconds, "HTTP": lambda: over_http(chats)}
                return take_turns(ways, repeats)

            times = both(together)
            short_times = both(Chats(prompts[:streams], settings.short))
            many_times = both(Chats(prompts[:many], settings.short))
            own_loop, loop = own.loop_seconds[-repeats:], host[-repeats:]
            peer = {} if missing is not None else _beside_llama_server(settings, work, together, ask)
            ways = {"AsyncLLM": own.answers, "HTTP": ask}
            at_once, waits = _first_tokens(ways, prompts[: settings.requests], settings)
    measured = _Measured(times, short_times, many_times, {"AsyncLLM": own_loop, "HTTP": loop}, at_once, waits, peer)
    return Report(gates, *_judged(settings, measured))


@dataclass(frozen=True)
class _Measured:
    """Repeats of each way, in seconds: of long, short and many streams, and of the event loop with many; of all
    requests at once; first tokens; and of llama-server, where it is there."""

    long: dict[str, list[float]]
    short: dict[str, list[float]]
    many: dict[str, list[float]]
    loop: dict[str, list[float]]
    at_once: dict[str, list[float]]
    first_tokens: dict[str, list[float]]
    peer: dict[str, list[float]]


def _judged(settings: HttpServingSettings, measured: _Measured) -> tuple[dict[str, Any], tuple[Target, ...]]:
    """The results, and the targets that they meet or miss."""
    tokens, many_tokens = settings.streams * settings.new_tokens, settings.many_streams * settings.short
    loops = spreads(measured.loop, 1e6 / many_tokens)
    ratio, short_ratio = (Spread.of_ratios(each["AsyncLLM"], each["HTTP"]) for each in (measured.long, measured.short))
    wait_ratio = Spread.of_ratios(measured.first_tokens["HTTP"], measured.first_tokens["AsyncLLM"])
    rates = {name: [tokens / each for each in values] for name, values in measured.long.items()}
    results = {
        "tokens_per_second": spreads(rates),
        "ratio": ratio,
        "short_ratio": short_ratio,
        "event_loop_us_per_token": loops,
        "many_streams_us_per_token": spreads(measured.many, 1e6 / many_tokens),
        **({} if not measured.peer else _of_peer(measured.peer, tokens)),
        "requests_per_second": spreads(
            {name: [settings.requests / each for each in values] for name, values in measured.at_once.items()}
        ),
        "first_token_p99_ms": spreads(measured.first_tokens, 1e3),
        "first_token_p99_ratio": wait_ratio,
    }
    above = loops["HTTP"].median - loops["AsyncLLM"].median
    title = f"throughput of {settings.streams} streams over AsyncLLM's, {{}} tokens each"
    many = f"event loop above AsyncLLM's, {settings.many_streams} streams"
    late = f"p99 of the time to the first token at {settings.load:g} load, over AsyncLLM's"
    targets = (
        Target(title.format(settings.new_tokens), ratio.median, "at least", LEAST_RATIO, "x"),
        Target(title.format(settings.short), short_ratio.median, "at least", LEAST_RATIO, "x"),
        Target(many, above, "at most", MOST_HOST_MICROSECONDS, "us"),
        Target(late, wait_ratio.median, "at most", MOST_FIRST_TOKEN_RATIO, "x"),
    )
    return results, targets


def _beside_llama_server(
    settings: HttpServingSettings, work: Path, chats: Chats, ask: Callable[[Chats], Answered]
) -> dict[str, list[float]]:
    """Seconds of ``chats`` by ``ask`` and by llama-server, in turns."""
    tokens = max(settings.new_tokens, settings.short) + 64
    running = llama_server(
        Path(str(settings.llama_cpp)), DEMO_CHECKPOINT, work, settings.streams, tokens, settings.threads
    )
    with running as url, clients(url, _NAME) as ask_peer:
        ask_peer(chats)
        ways = {"HTTP": lambda: ask(chats).seconds, "llama-server": lambda: ask_peer(chats).seconds}
        return take_turns(ways, settings.repeats)


def _of_peer(times: dict[str, list[float]], tokens: int) -> dict[str, object]:
    return {
        "beside_llama_server_tokens_per_second": spreads(
            {name: [tokens / each for each in values] for name, values in times.items()}
        ),
        "llama_server_ratio": Spread.of_ratios(times["llama-server"], times["HTTP"]),
    }


def _first_tokens(
    ways: Mapping[str, Callable[[Chats], Answered]], prompts: Sequence[str], settings: HttpServingSettings
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of all chats at once, and the 99th of 100 times from an arrival to its first token, of each repeat."""
    together = Chats(prompts, settings.short)
    at_once = take_turns({name: _seconds_of(way, together) for name, way in ways.items()}, _AT_ONCE)
    interval = max(median(values) for values in at_once.values()) / len(prompts) / settings.load
    found: dict[str, list[float]] = {name: [] for name in ways}
    for seed in range(settings.repeats):
        chats = Chats(prompts, settings.short, tuple(poisson_arrivals(len(prompts), interval, seed)))
        # Each way comes first in every other repeat.
        for name in (list(ways), list(ways)[::-1])[seed % 2]:
            found[name].append(ways[name](chats).late())
    return at_once, found


def _seconds_of(way: Callable[[Chats], Answered], chats: Chats) -> Callable[[], float]:
    return lambda: way(chats).seconds


class _Own:
    """AsyncLLM with one task for each chat. ``loop_seconds``: processor time of its event loop in each run."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self.loop_seconds: list[float] = []

    def answers(self, chats: Chats) -> Answered:
        return asyncio.run(self._all(chats))

    async def _all(self, chats: Chats) -> Answered:
        began = time.thread_time()
        found = await chats.answered(self._one)
        self.loop_seconds.append(time.thread_time() - began)
        return found

    async def _one(self, prompt: str, new_tokens: int) -> Answer:
        texts, first = [], 0.0
        async for piece in self._llm.chat(prompt, SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)):
            first = first or time.perf_counter()
            texts.append(piece.text)
        return texts, first


@contextmanager
def _serving(folder: Path, threads: int, most_waiting: int) -> Iterator[tuple[HttpServer, int]]:
    """A server in a thread, and the clock of that thread's processor time."""
    models = [ModelSettings(_NAME, folder, preload=True, threads=threads)]
    server = HttpServer(ServeSettings(port=0, max_waiting=most_waiting), models, log=RequestLog(False, io.StringIO()))
    thread = threading.Thread(target=server.run, args=(True,))
    thread.start()
    try:
        while not server.service.store.loaded:
            time.sleep(0.05)
        assert thread.ident is not None
        yield server, time.pthread_getcpuclockid(thread.ident)
    finally:
        server.stop()
        thread.join()
