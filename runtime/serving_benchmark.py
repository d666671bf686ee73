"""Speed with many requests, in the terms of `vllm bench serve`."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hybridge.artifact.errors import RequestError
from hybridge.artifact.progress import NoProgress, Progress
from hybridge.runtime.async_llm import AsyncLLM
from hybridge.runtime.benchmark import Distribution
from hybridge.runtime.sampling import SamplingParams


@dataclass(frozen=True)
class Workload:
    """``requests`` of ``input_tokens`` random tokens, each answered with ``output_tokens``, greedily.

    request_rate: requests per second, at random times (a Poisson process); inf: all at once. concurrency:
    maximum number of concurrent requests, None without limit. seed: of tokens and arrival times.
    """

    requests: int = 64
    input_tokens: int = 512
    output_tokens: int = 128
    request_rate: float = math.inf
    concurrency: int | None = None
    seed: int = 0

    def check(self, max_seq_len: int) -> Workload:
        """RequestError names a value out of range, or lengths that exceed ``max_seq_len``."""
        for name in ("requests", "input_tokens", "output_tokens", "concurrency"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RequestError(f"{name}: expected at least 1, found {value}")
        if not self.request_rate > 0:
            raise RequestError(f"request_rate: expected requests per second, above 0, found {self.request_rate}")
        if self.seed < 0:
            raise RequestError(f"seed: expected at least 0, found {self.seed}")
        if self.input_tokens + self.output_tokens > max_seq_len:
            raise RequestError(
                f"the longest request: expected at most {max_seq_len} tokens, found "
                f"{self.input_tokens + self.output_tokens}"
            )
        return self

    def arrivals(self) -> np.ndarray:
        """Arrival time of each request [requests], in seconds from the start."""
        gaps = np.random.default_rng([self.seed, 1]).exponential(1.0 / self.request_rate, self.requests)
        return np.concatenate([[0.0], np.cumsum(gaps)[:-1]])

    def prompts(self, vocab_size: int) -> np.ndarray:
        """Token ids [requests, input_tokens]."""
        return np.random.default_rng(self.seed).integers(0, vocab_size, (self.requests, self.input_tokens))


@dataclass(frozen=True)
class RequestTimes:
    """Times at which a request was sent and each of its tokens arrived, in seconds."""

    sent: float
    tokens: tuple[float, ...]


@dataclass(frozen=True)
class ServingReport:
    """Measurements. Times in seconds, rates per second.

    time_to_first_token: from sending a request. time_per_token: of each request, from its first token to its last, over
    the tokens between. inter_token_latency: between two neighbouring tokens. end_to_end: to the last token.
    """

    engine: str
    model_type: str
    dtype: str
    workload: Workload
    duration: float
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    time_to_first_token: Distribution
    time_per_token: Distribution | None
    inter_token_latency: Distribution | None
    end_to_end: Distribution

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return asdict(self)


def run_serving_benchmark(llm: AsyncLLM, workload: Workload, progress: Progress | None = None) -> ServingReport:
    """Serve ``workload`` after one warm-up request. RequestError as in ``Workload.check``."""
    workload.check(llm.max_seq_len)
    shown = progress or NoProgress()
    shown.start("benchmark", workload.requests, "requests")
    times = asyncio.run(_serve(llm, workload, shown))
    shown.finish()
    return serving_report(llm.engine.name, llm.config.model_type, llm.config.dtype.value, workload, times)


def serving_report(
    engine: str, model_type: str, dtype: str, workload: Workload, times: Sequence[RequestTimes]
) -> ServingReport:
    """The report on requests served at ``times``."""
    duration = max(each.tokens[-1] for each in times) - min(each.sent for each in times)
    outputs = sum(len(each.tokens) for each in times)
    per_token = [(each.tokens[-1] - each.tokens[0]) / (len(each.tokens) - 1) for each in times if len(each.tokens) > 1]
    gaps = [gap for each in times for gap in np.diff(each.tokens).tolist()]
    return ServingReport(
        engine,
        model_type,
        dtype,
        workload,
        duration,
        len(times) / duration,
        outputs / duration,
        (outputs + len(times) * workload.input_tokens) / duration,
        Distribution.of(each.tokens[0] - each.sent for each in times),
        Distribution.of(per_token) if per_token else None,
        Distribution.of(gaps) if gaps else None,
        Distribution.of(each.tokens[-1] - each.sent for each in times),
    )


async def _serve(llm: AsyncLLM, workload: Workload, progress: Progress) -> list[RequestTimes]:
    prompts = workload.prompts(llm.config.vocab_size).tolist()
    sampling = SamplingParams(max_new_tokens=workload.output_tokens, ignore_eos=True)
    slots = asyncio.Semaphore(workload.concurrency or workload.requests)

    async def measured(prompt: list[int]) -> RequestTimes:
        async with slots:
            sent, tokens = time.perf_counter(), []
            async for piece in llm.add(prompt, sampling):
                tokens += [time.perf_counter()] * len(piece.token_ids)
        progress.advance()
        return RequestTimes(sent, tuple(tokens))

    # Sessions are opened at their first use. The tokens differ from those of the measured prompts, which start
    # uncached.
    warm = [(token + 1) % llm.config.vocab_size for token in prompts[0]]
    async for _ in llm.add(warm, sampling):
        pass
    started = time.perf_counter()
    tasks = []
    for prompt, arrival in zip(prompts, workload.arrivals(), strict=True):
        if (delay := started + arrival - time.perf_counter()) > 0:
            await asyncio.sleep(delay)
        tasks.append(asyncio.create_task(measured(prompt)))
    return list(await asyncio.gather(*tasks))
