"""Counters for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hybridge.artifact.errors import RequestError
from hybridge.runtime.generation import Generation
from hybridge.serve.served_model import ServedModel

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class Metrics:
    """One registry per server. Gauges of the models are computed when the metrics are read."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "hybridge_requests", "Requests by path and status.", ["path", "status"], registry=registry
        )
        self._seconds = Histogram(
            "hybridge_request_seconds", "Time of a request.", ["path"], buckets=_SECONDS, registry=registry
        )
        tokens = {
            "prompt": "Prompt tokens.",
            "cached": "Prompt tokens from the prefix cache.",
            "generated": "Generated tokens.",
        }
        self._tokens = {
            kind: Counter(f"hybridge_{kind}_tokens", help, ["model"], registry=registry)
            for kind, help in tokens.items()
        }
        self._finished = Counter(
            "hybridge_answers", "Finished answers by reason.", ["model", "reason"], registry=registry
        )
        self._first_token = Histogram(
            "hybridge_first_token_seconds", "TTFT.", ["model"], buckets=_SECONDS, registry=registry
        )
        self._per_token = Histogram(
            "hybridge_per_token_seconds", "TPOT.", ["model"], buckets=_TOKEN_SECONDS, registry=registry
        )
        gauges = {
            "running": "Sequences with memory.",
            "waiting": "Sequences that wait.",
            "blocks_free": "Free KV blocks.",
            "slots_free": "Free state slots.",
            "memory_bytes": "Memory of the engine and its pools.",
        }
        self._gauges = {
            name: Gauge(f"hybridge_{name}", help, ["model"], registry=registry) for name, help in gauges.items()
        }
        self._misses = Gauge(
            "hybridge_prefix_cache_misses", "Prompts without a hit, by reason.", ["model", "reason"], registry=registry
        )

    def request_ended(self, path: str, status: int, seconds: float) -> None:
        """Count a request; ``path`` is a route's pattern."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def answered(self, model: str, answers: Iterable[Generation]) -> None:
        """Count the answers to one prompt."""
        for number, answer in enumerate(answers):
            times = answer.timings
            if not number:
                self._tokens["prompt"].labels(model).inc(len(answer.prompt_token_ids))
                self._tokens["cached"].labels(model).inc(answer.cached_tokens)
                self._first_token.labels(model).observe(times.first_token)
            self._tokens["generated"].labels(model).inc(len(answer.token_ids))
            self._finished.labels(model, answer.finish_reason).inc()
            if times.new_tokens > 1:
                self._per_token.labels(model).observe((times.last_token - times.first_token) / (times.new_tokens - 1))

    def abandoned(self, model: str, prompts: int) -> None:
        """Count prompts without a finished answer: the client disconnected, a timeout, or a failed step."""
        self._finished.labels(model, "abandoned").inc(prompts)

    async def render(self, models: Iterable[ServedModel]) -> bytes:
        """All metrics in Prometheus' text format."""
        for gauge in (*self._gauges.values(), self._misses):
            gauge.clear()
        for model in models:
            await self._read(model)
        return generate_latest(self._registry)

    async def _read(self, model: ServedModel) -> None:
        scheduler = model.llm.loop.scheduler
        manager = scheduler.manager
        for name, value in (
            ("running", scheduler.running),
            ("waiting", scheduler.waiting),
            ("blocks_free", manager.pool.free),
            ("slots_free", manager.slots.free),
            ("memory_bytes", model.nbytes),
        ):
            self._gauges[name].labels(model.name).set(value)
        try:
            report = await model.llm.prefix_cache_report()
        except RequestError:
            return  # closed, or without a radix tree
        for reason, count in report.counts.misses.items():
            self._misses.labels(model.name, reason).set(count)
