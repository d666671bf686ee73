"""hybridge bench."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hybridge.cli.flag_names import flags_of, naming_flags
from hybridge.cli.options import Artifact, Engine, EngineFolder, Json, Quiet, Threads, integers, setting
from hybridge.cli.terminal import Terminal

DEFAULT_PROMPT_TOKENS, DEFAULT_NEW_TOKENS = 512, 128
_DENSE, _PAGED = "Dense artifacts", "Paged artifacts (many requests)"
FLAGS = {
    **flags_of("prompt_tokens", "new_tokens", "repetitions", "threads", "engine", "engine_folder"),
    **flags_of("requests", "request_rate", "concurrency", "seed"),
    "context_tokens": "--context",
    "rows": "--batch",
    "input_tokens": "--prompt-tokens",
    "output_tokens": "--new-tokens",
    "the longest run": "--prompt-tokens, or --context and --new-tokens together",
    "the longest request": "--prompt-tokens and --new-tokens together",
}
# Parameters of one layout.
_ONLY_DENSE, _ONLY_PAGED = ("context", "batch", "repetitions", "plot"), ("requests", "request_rate", "concurrency")


def bench(
    out: Artifact,
    prompt_tokens: Annotated[
        str | None,
        setting("--prompt-tokens", "-p", metavar="N,...", help="Prompt lengths (one if paged).", show_default="512"),
    ] = None,
    new_tokens: Annotated[
        str | None,
        setting(
            "--new-tokens", "-n", metavar="N,...", help="Tokens generated (one number if paged).", show_default="128"
        ),
    ] = None,
    context: Annotated[
        int | None,
        setting(metavar="N", help="Tokens present before generation.", panel=_DENSE, show_default="1"),
    ] = None,
    batch: Annotated[int | None, setting(metavar="N", help="Batch size.", panel=_DENSE, show_default="1")] = None,
    repetitions: Annotated[
        int | None,
        setting("--repetitions", "-r", metavar="N", help="Runs of each kind.", panel=_DENSE, show_default="5"),
    ] = None,
    plot: Annotated[
        Path | None,
        setting(metavar="FILE", help="Draw the results (PNG).", panel=_DENSE, show_default=False, dir_okay=False),
    ] = None,
    requests: Annotated[
        int | None, setting(metavar="N", help="Number of requests.", panel=_PAGED, show_default="64")
    ] = None,
    request_rate: Annotated[
        float | None,
        setting(metavar="X", help="Requests a second, at random times.", panel=_PAGED, show_default="all at once"),
    ] = None,
    concurrency: Annotated[
        int | None, setting(metavar="N", help="Most requests at a time.", panel=_PAGED, show_default="no limit")
    ] = None,
    seed: Annotated[int, setting(metavar="N", help="Of random tokens and arrival times.", panel=_PAGED)] = 0,
    engine: Engine = "auto",
    engine_folder: EngineFolder = None,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a dense artifact's prompt processing (pp) and token generation (tg), or many requests to a paged one."""
    with Terminal(as_json, quiet) as terminal, naming_flags(FLAGS):
        from hybridge.artifact.config import read_config
        from hybridge.artifact.paged import PAGED
        from hybridge.artifact.path_kind import require_artifact

        require_artifact(out)
        layout = read_config(out).layout
        values = {
            "context": context,
            "batch": batch,
            "repetitions": repetitions,
            "plot": plot,
            "requests": requests,
            "request_rate": request_rate,
            "concurrency": concurrency,
        }
        given = {name: value for name, value in values.items() if value is not None}
        _refuse(given, _ONLY_DENSE if layout == PAGED else _ONLY_PAGED, layout)
        if layout == PAGED:
            _bench_requests(out, prompt_tokens, new_tokens, given, seed, (engine, engine_folder, threads), terminal)
        else:
            _bench_rows(out, prompt_tokens, new_tokens, given, (engine, engine_folder, threads), terminal)


def _refuse(given: Mapping[str, Any], names: tuple[str, ...], layout: str) -> None:
    for name in names:
        if name in given:
            raise typer.BadParameter(
                f"expected none for an artifact of layout {layout}, found {given[name]}",
                param_hint="--" + name.replace("_", "-"),
            )


def _bench_rows(
    out: Path,
    prompt_tokens: str | None,
    new_tokens: str | None,
    given: Mapping[str, Any],
    choice: tuple[str, str | None, int | None],
    terminal: Terminal,
) -> None:
    from hybridge.cli.bench_tables import benchmark_table
    from hybridge.cli.plot import check_plot, plot_report
    from hybridge.runtime.benchmark import run_benchmark
    from hybridge.runtime.engines.factory import EngineOptions, create_engine

    plot, context = given.get("plot"), given.get("context", 1)
    if plot is not None:
        check_plot(plot)
    engine, folder, threads = choice
    with contextlib.closing(create_engine(out, engine, EngineOptions(threads, folder))) as loaded:
        for note in loaded.notes:
            terminal.remark(f"note: {note}")
        limit = loaded.max_seq_len
        report = run_benchmark(
            loaded,
            _lengths(prompt_tokens, "--prompt-tokens", min(DEFAULT_PROMPT_TOKENS, limit)),
            _lengths(new_tokens, "--new-tokens", min(DEFAULT_NEW_TOKENS, limit - context)),
            context,
            given.get("batch", 1),
            given.get("repetitions", 5),
            progress=terminal.progress,
        )
    terminal.progress.finish()
    if plot is not None:
        plot_report(report, plot)
        terminal.remark(f"wrote {plot}")
    terminal.show(benchmark_table(report))
    terminal.document(report.to_json())


def _bench_requests(
    out: Path,
    prompt_tokens: str | None,
    new_tokens: str | None,
    given: Mapping[str, Any],
    seed: int,
    choice: tuple[str, str | None, int | None],
    terminal: Terminal,
) -> None:
    from hybridge.cli.bench_tables import serving_tables
    from hybridge.runtime.async_llm import AsyncLLM
    from hybridge.runtime.engines.factory import EngineOptions
    from hybridge.runtime.serving_benchmark import Workload, run_serving_benchmark

    engine, folder, threads = choice
    EngineOptions(threads, folder).check_engine_folder(engine)
    with contextlib.closing(AsyncLLM(out, engine, threads=threads)) as llm:
        half = llm.max_seq_len // 2
        workload = Workload(
            input_tokens=_length(prompt_tokens, "--prompt-tokens", min(DEFAULT_PROMPT_TOKENS, half)),
            output_tokens=_length(new_tokens, "--new-tokens", min(DEFAULT_NEW_TOKENS, half)),
            seed=seed,
            **given,
        )
        report = run_serving_benchmark(llm, workload, terminal.progress)
    terminal.progress.finish()
    terminal.show(*serving_tables(report))
    terminal.document(report.to_json())


def _lengths(text: str | None, option: str, default: int) -> tuple[int, ...]:
    return (default,) if text is None else integers(text, option)


def _length(text: str | None, option: str, default: int) -> int:
    found = _lengths(text, option, default)
    if len(found) != 1:
        raise typer.BadParameter(f"expected one length for a paged artifact, found {text!r}", param_hint=option)
    return found[0]
