"""Requests that arrive at a serving loop at random times, and the times of their tokens."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from hybridge.runtime.generation import Request
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.request import ServingRequest


@dataclass(frozen=True)
class ServedStep:
    """One step: seconds from the end of the one before to its own, those that the device waited for the host, those
    from the end of the launch to the tokens, and its size."""

    wall: float
    host: float
    device: float
    rows: int
    tokens: int


@dataclass
class Served:
    """Seconds since the beginning: arrival and tokens of each request; the steps; what each request is answered."""

    arrivals: list[float] = field(default_factory=list)
    tokens: list[list[float]] = field(default_factory=list)
    steps: list[ServedStep] = field(default_factory=list)
    answers: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def first_token(self) -> np.ndarray:
        """Seconds from the arrival to the first token, of each request."""
        return np.array([marks[0] - arrival for marks, arrival in zip(self.tokens, self.arrivals, strict=True)])

    @property
    def between_tokens(self) -> np.ndarray:
        """Seconds between the tokens of all requests."""
        return np.concatenate([np.diff(marks) for marks in self.tokens])

    def rate(self, settled: float = 0.25) -> float:
        """Tokens per second up to the first token of the last request, a share ``settled`` of the time left out."""
        end = max(marks[0] for marks in self.tokens)
        begin = settled * end
        marks = np.concatenate([np.array(marks) for marks in self.tokens])
        return float(np.count_nonzero((marks > begin) & (marks <= end)) / (end - begin))

    def latencies_ms(self) -> dict[str, float]:
        """Milliseconds to the first token and between tokens, at 50 and 99 of 100."""
        parts = {"first_token": self.first_token, "between_tokens": self.between_tokens}
        return {f"{name}_p{q}": 1e3 * float(np.percentile(v, q)) for name, v in parts.items() for q in (50, 99)}


def poisson_arrivals(count: int, interval: float, seed: int = 1) -> list[float]:
    """Seconds at which ``count`` requests arrive, ``interval`` apart on average."""
    times: list[float] = np.cumsum(np.random.default_rng(seed).exponential(interval, count)).tolist()
    return times


@contextmanager
def old_objects_frozen() -> Iterator[None]:
    """Inside, garbage collections leave out the objects that exist at the beginning, as in ``HttpServer.run``: one of
    all objects stops the process for 0.3 seconds, more where it has exported a model."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def serve(
    loop: ServingLoop,
    prompts: Sequence[Sequence[int]],
    arrivals: Sequence[float],
    new_tokens: int | Sequence[int],
    params: Sequence[SamplingParams] | None = None,
) -> Served:
    """Let each prompt arrive at its time and run until all have ``new_tokens``; EngineError when a step fails.

    new_tokens: of all prompts, or of each. params: of each prompt; None: greedy.
    """
    chosen = params or [SamplingParams(ignore_eos=True)] * len(prompts)
    lengths = [new_tokens] * len(prompts) if isinstance(new_tokens, int) else new_tokens
    requests = [
        ServingRequest(Request(tuple(prompt), own, length))
        for prompt, own, length in zip(prompts, chosen, lengths, strict=True)
    ]
    served = Served(list(arrivals), [[] for _ in prompts], answers=[()] * len(prompts))
    places, came = dict[int, int](), 0
    started = before = time.perf_counter()

    def arrive() -> None:
        nonlocal came
        now = time.perf_counter() - started
        while came < len(requests) and arrivals[came] <= now:
            places[loop.add(requests[came])] = came
            came += 1

    while came < len(requests) or loop.busy:
        if not loop.busy:
            time.sleep(max(0.0, arrivals[came] - (time.perf_counter() - started)))
            arrive()
            before = time.perf_counter()
            continue
        outputs = loop.step(arrive)
        ended = time.perf_counter()
        plan, times = loop.last_plan, loop.last_times
        assert plan is not None
        served.steps.append(ServedStep(ended - before, times.host, times.device, len(plan.rows), plan.tokens))
        before = ended
        for output in outputs:
            if output.error is not None:
                raise output.error
            place = places[output.request_id]
            served.tokens[place].append(ended - started)
            if output.piece is not None and output.piece.generation is not None:
                served.answers[place] = output.piece.generation.token_ids
    return served


def host_microseconds(served: Served, rows: int) -> list[float]:
    """The host's share of every step in which ``rows`` rows decode and nothing else happens.

    RuntimeError when there is no such step.
    """
    found = [1e6 * step.host for step in served.steps if step.rows == step.tokens == rows]
    if not found:
        raise RuntimeError(f"expected steps in which {rows} rows decode, found none: let more requests come")
    return found
