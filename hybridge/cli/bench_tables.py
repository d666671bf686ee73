"""Reports of hybridge bench as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridge.runtime.benchmark import BenchmarkReport, Distribution
    from hybridge.runtime.serving_benchmark import ServingReport


def benchmark_table(report: BenchmarkReport) -> Any:
    """Speed of prompt processing and token generation."""
    title = f"{report.model_type}, {report.dtype} artifact, {report.engine}, {report.repetitions} repetitions"
    columns = ("test", "rows", "tokens/s", "latency", "p50", "p95", "p99", "in the engine")
    table = _table(title, columns, left=("test", "latency"))
    for prefill in report.prefill:
        row = (prefill.name, str(prefill.rows), f"{prefill.tokens_per_second:.1f}", "first token")
        table.add_row(*row, *_percentiles(prefill.time_to_first_token), "")
    for decode in report.decode:
        name = f"{decode.name} @{decode.context_tokens}" if decode.context_tokens > 1 else decode.name
        row = (name, str(decode.rows), f"{decode.tokens_per_second:.1f}", "each token")
        table.add_row(*row, *_percentiles(decode.time_per_token), f"{decode.engine_share:.0%}")
    return table


def serving_tables(report: ServingReport) -> tuple[Any, str]:
    """Latencies of many requests, and their throughput."""
    load = report.workload
    arrival = "all at once" if load.request_rate == float("inf") else f"{load.request_rate:g} per second"
    limit = "" if load.concurrency is None else f", at most {load.concurrency} at a time"
    title = (
        f"{report.model_type}, {report.dtype} artifact, {report.engine}: {load.requests} requests of "
        f"{load.input_tokens} + {load.output_tokens} tokens, {arrival}{limit}"
    )
    table = _table(title, ("latency", "mean", "p50", "p95", "p99"), ("latency",))
    for name, times in (
        ("time to first token (TTFT)", report.time_to_first_token),
        ("time per output token (TPOT)", report.time_per_token),
        ("inter-token latency (ITL)", report.inter_token_latency),
        ("end to end (E2EL)", report.end_to_end),
    ):
        if times is not None:
            table.add_row(name, f"{1000 * times.mean:.2f} ms", *_percentiles(times))
    return table, (
        f"{report.duration:.2f} s: {report.requests_per_second:.2f} requests/s, "
        f"{report.output_tokens_per_second:.1f} output tokens/s, {report.total_tokens_per_second:.1f} tokens/s in all"
    )


def _table(title: str, columns: tuple[str, ...], left: tuple[str, ...]) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right")
    return table


def _percentiles(times: Distribution) -> tuple[str, str, str]:
    return tuple(f"{1000 * value:.2f} ms" for value in (times.p50, times.p95, times.p99))  # type: ignore[return-value]
