"""Documents of all benchmarks as ``python -m benchmarks`` prints them, with made-up numbers."""

from __future__ import annotations

from typing import Any

from benchmarks.cpu_decode import GOALS
from benchmarks.registry import benchmark
from benchmarks.runner import Benchmark, Gate, Report, Target

SPREAD = {"median": 12.345, "min": 11.5, "max": 1234.5, "repeats": 3}
TARGET = Target("a thing", 2.0, "at least", 1.5, "x")


def all_documents(error: float = 0.0) -> dict[str, Any]:
    """The documents of all; ``error`` is what every gate found, against a limit of 1e-4."""
    results = {
        "export": _export_results(),
        "start_up": {layout: {"wall_s": SPREAD, "cpu_s": SPREAD} for layout in ("dense", "paged")},
        "cpu_decode": {name: _decode_result() for name in GOALS},
        "scheduler": {"host_us": SPREAD, "host_sampled_us": SPREAD},
        "serving": _serving_results(),
    }
    return {
        name: document_of(name, Report((Gate("logits", error, 1e-4),), found, (TARGET,)))
        for name, found in results.items()
    }


def document_of(name: str, report: Report) -> dict[str, Any]:
    """The document of the benchmark ``name``, with its own settings, that found ``report``."""

    def run(settings: Any) -> Report:
        return report

    document = Benchmark(name, run).document(benchmark(name).settings())
    document["machine"]["other_work"] = 0.01
    return document


def _export_results() -> dict[str, Any]:
    mode = {"wall_s": SPREAD, "cpu_s": SPREAD, "peak_rss_bytes": SPREAD}
    return {"with_scan": mode, "without_scan": mode, "new_bytes": 114700}


def _serving_results() -> dict[str, Any]:
    latency = {"first_token_p50": 1.25, "first_token_p99": 9.5, "between_tokens_p50": 2.0, "between_tokens_p99": 33.25}
    rates = {"dense, one after another": SPREAD, "paged, batched": SPREAD}
    alone = {tokens: {"no cache": SPREAD, "new prompt": SPREAD} for tokens in ("100", "512")}
    latencies = {"latency_ms": {"0.5": latency, "0.9": latency}, "first_token_ms": alone}
    return {"tokens_per_second": rates, "ratio": SPREAD, **latencies}


def _decode_result() -> dict[str, Any]:
    rates = {"ours": SPREAD, "peer": SPREAD}
    return {
        "decode_tokens_per_s": rates,
        "decode_ratio": SPREAD,
        "read_bandwidth_gb_per_s": SPREAD,
        "touched_mb_per_token": 500.7,
        "bandwidth_share": rates,
        "prefill_tokens_per_s": rates,
        "prefill_ratio": SPREAD,
        "python_overhead_us": {"median": 61.0, "p95": 90.0, "steps": 9},
    }
