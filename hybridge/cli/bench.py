"""hybridge bench."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hybridge.cli.engine_option import ENGINE_NAME
from hybridge.cli.options import ARTIFACT, JSON, QUIET
from hybridge.cli.parser import FLAGS, INTEGER, INTEGERS, NUMBER, PATH, Command, Option, given, options_of
from hybridge.cli.terminal import Terminal
from hybridge.runtime.engines.factory import AUTO, EngineOptions

DEFAULT_PROMPT_TOKENS, DEFAULT_NEW_TOKENS = 512, 128
_STEPS, _REQUESTS = "Steps", "Many requests"
# Flags whose parameters have other names in Python.
_FLAGS = {
    "context_tokens": "--context",
    "rows": "--batch",
    "input_tokens": "--prompt-tokens",
    "output_tokens": "--new-tokens",
    "the longest run": "--prompt-tokens, or --context and --new-tokens together",
    "the longest request": "--prompt-tokens and --new-tokens together",
}
# Options of each kind of measurement; giving one of the second kind selects that kind.
_ONLY_STEPS, _ONLY_REQUESTS = ("context", "batch", "repetitions", "plot"), ("requests", "request_rate", "concurrency")


def _run(
    out: Path,
    engine: str | None,
    engine_folder: str | None,
    threads: int | None,
    exact_products: bool | None,
    as_json: bool,
    quiet: bool,
    **values: Any,
) -> None:
    click.get_current_context().meta[FLAGS] = _FLAGS
    with Terminal(as_json, quiet) as terminal:
        from hybridge.artifact.path_kind import require_artifact

        options = EngineOptions(threads, engine_folder, bool(exact_products))
        require_artifact(out)
        chosen = given(values)
        many = any(name in chosen for name in _ONLY_REQUESTS)
        if many:
            _refuse(chosen, _ONLY_STEPS)
        measure = _bench_requests if many else _bench_rows
        measure(out, chosen, engine or AUTO, options, terminal)


def _refuse(chosen: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if name in chosen:
            raise click.BadParameter(
                f"expected none with --requests, --request-rate and --concurrency, found {chosen[name]}",
                param_hint="--" + name.replace("_", "-"),
            )


def _bench_rows(out: Path, chosen: Mapping[str, Any], engine: str, options: EngineOptions, terminal: Terminal) -> None:
    from hybridge.cli.bench_tables import benchmark_table
    from hybridge.cli.plot import check_plot, plot_report
    from hybridge.runtime.benchmark import run_benchmark
    from hybridge.runtime.serving.open import open_engine

    plot, context = chosen.get("plot"), chosen.get("context", 1)
    if plot is not None:
        check_plot(plot)
    with contextlib.closing(open_engine(out, engine, options)) as loaded:
        terminal.notes(loaded.notes)
        limit = loaded.config.max_seq_len
        report = run_benchmark(
            loaded,
            chosen.get("prompt_tokens", (min(DEFAULT_PROMPT_TOKENS, limit),)),
            chosen.get("new_tokens", (min(DEFAULT_NEW_TOKENS, limit - context),)),
            context,
            chosen.get("batch", 1),
            chosen.get("repetitions", 5),
            progress=terminal.progress,
        )
    terminal.progress.finish()
    if plot is not None:
        plot_report(report, plot)
        terminal.remark(f"wrote {plot}")
    terminal.show(benchmark_table(report))
    terminal.document(report.to_json())


def _bench_requests(
    out: Path, chosen: Mapping[str, Any], engine: str, options: EngineOptions, terminal: Terminal
) -> None:
    from hybridge.cli.bench_tables import serving_tables
    from hybridge.runtime.async_llm import AsyncLLM
    from hybridge.runtime.serving_benchmark import Workload, run_serving_benchmark

    load = dict(chosen)
    exact = options.exact_products
    opened = AsyncLLM(out, engine, threads=options.threads, engine_folder=options.engine_folder, exact_products=exact)
    with contextlib.closing(opened) as llm:
        half = llm.max_seq_len // 2
        workload = Workload(
            input_tokens=_length(load.pop("prompt_tokens", (min(DEFAULT_PROMPT_TOKENS, half),)), "--prompt-tokens"),
            output_tokens=_length(load.pop("new_tokens", (min(DEFAULT_NEW_TOKENS, half),)), "--new-tokens"),
            **load,
        )
        report = run_serving_benchmark(llm, workload, terminal.progress)
    terminal.progress.finish()
    terminal.show(*serving_tables(report))
    terminal.document(report.to_json())


def _length(lengths: tuple[int, ...], flag: str) -> int:
    if len(lengths) != 1:
        found = ",".join(map(str, lengths))
        raise click.BadParameter(f"expected one length for many requests, found {found!r}", param_hint=flag)
    return lengths[0]


COMMAND = Command(
    "bench",
    "Measure prompt processing (pp) and token generation (tg), or many requests with --requests, --request-rate or "
    "--concurrency.",
    _run,
    ARTIFACT,
    Option(
        "--prompt-tokens",
        "-p",
        help="Prompt lengths; a single one when measuring many requests.",
        type=INTEGERS,
        metavar="N,...",
        default=str(DEFAULT_PROMPT_TOKENS),
    ),
    Option(
        "--new-tokens",
        "-n",
        help="Tokens generated; a single number when measuring many requests.",
        type=INTEGERS,
        metavar="N,...",
        default=str(DEFAULT_NEW_TOKENS),
    ),
    Option(
        "--seed",
        help="Seed of random tokens and arrival times.",
        type=INTEGER,
        metavar="N",
        default="0",
        group=_REQUESTS,
    ),
    Option(
        "--context",
        help="Tokens in the cache before generation.",
        type=INTEGER,
        metavar="N",
        default="1",
        group=_STEPS,
    ),
    Option("--batch", help="Batch size.", type=INTEGER, metavar="N", default="1", group=_STEPS),
    Option(
        "--repetitions",
        "-r",
        help="Repetitions of each measurement.",
        type=INTEGER,
        metavar="N",
        default="5",
        group=_STEPS,
    ),
    Option("--plot", help="Draw the results (PNG, SVG or PDF).", type=PATH, metavar="FILE", group=_STEPS),
    Option("--requests", help="Number of requests.", type=INTEGER, metavar="N", default="64", group=_REQUESTS),
    Option(
        "--request-rate",
        help="Requests per second, at random times.",
        type=NUMBER,
        metavar="X",
        default="all at once",
        group=_REQUESTS,
    ),
    Option(
        "--concurrency",
        help="Maximum number of concurrent requests.",
        type=INTEGER,
        metavar="N",
        default="no limit",
        group=_REQUESTS,
    ),
    ENGINE_NAME,
    *options_of(EngineOptions),
    JSON,
    QUIET,
)
