"""hybridge bench."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridge.cli.flag_names import flags_of, naming_flags
from hybridge.cli.options import Artifact, Engine, EngineFolder, Json, Quiet, Threads, integers
from hybridge.cli.terminal import Terminal

if TYPE_CHECKING:
    from runtime.benchmark import BenchmarkReport, Distribution

DEFAULT_PROMPT_TOKENS, DEFAULT_NEW_TOKENS = 512, 128
FLAGS = {
    **flags_of("prompt_tokens", "new_tokens", "repetitions", "threads", "engine", "engine_folder"),
    "context_tokens": "--context",
    "rows": "--batch",
    "the longest run": "--prompt-tokens, or --context and --new-tokens together",
}


def bench(
    out: Artifact,
    engine: Engine = "auto",
    prompt_tokens: Annotated[
        str | None, typer.Option("--prompt-tokens", "-p", metavar="N,N,...", help="Prompt lengths.", show_default="512")
    ] = None,
    new_tokens: Annotated[
        str | None, typer.Option("--new-tokens", "-n", metavar="N,N,...", help="Tokens generated.", show_default="128")
    ] = None,
    context: Annotated[int, typer.Option(help="Tokens present before generation.")] = 1,
    batch: Annotated[int, typer.Option(help="Rows computed together.")] = 1,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", help="Measured runs of each kind.")] = 5,
    engine_folder: EngineFolder = None,
    threads: Threads = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the results.", show_default=False, dir_okay=False)
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure prompt processing (pp) and token generation (tg) in tokens per second."""
    with Terminal(as_json, quiet) as terminal:
        if plot is not None:
            from hybridge.cli.plot import check_plot

            check_plot(plot)
        from runtime.benchmark import run_benchmark
        from runtime.engines.factory import EngineOptions, create_engine

        _require_dense(out)
        options = EngineOptions(threads, engine_folder)
        with naming_flags(FLAGS), contextlib.closing(create_engine(out, engine, options)) as loaded:
            for note in loaded.notes:
                terminal.remark(f"note: {note}")
            limit = loaded.max_seq_len
            report = run_benchmark(
                loaded,
                _lengths(prompt_tokens, "--prompt-tokens", min(DEFAULT_PROMPT_TOKENS, limit)),
                _lengths(new_tokens, "--new-tokens", min(DEFAULT_NEW_TOKENS, limit - context)),
                context,
                batch,
                repetitions,
                progress=terminal.progress,
            )
        terminal.progress.finish()
        if plot is not None:
            from hybridge.cli.plot import plot_report

            plot_report(report, plot)
            terminal.remark(f"wrote {plot}")
        terminal.show(_table(report))
        terminal.document(report.to_json())


def _require_dense(out: Path) -> None:
    from artifact.config import DENSE, read_config
    from artifact.errors import EngineError
    from artifact.path_kind import require_artifact

    require_artifact(out)
    layout = read_config(out).layout
    if layout != DENSE:
        raise EngineError(
            f"{out}: expected an artifact of layout {DENSE}, found {layout}, whose speed is that of many requests: "
            "measure one exported without --layout"
        )


def _lengths(text: str | None, option: str, default: int) -> tuple[int, ...]:
    return (default,) if text is None else integers(text, option)


def _table(report: BenchmarkReport) -> Any:
    from rich.table import Table

    title = f"{report.model_type}, {report.dtype} artifact, {report.engine}, {report.repetitions} repetitions"
    table = Table(title=title, title_justify="left")
    for column in ("test", "rows", "tokens/s", "of", "p50", "p95", "p99", "in the engine"):
        table.add_column(column, justify="left" if column in ("test", "of") else "right")
    for prefill in report.prefill:
        row = (prefill.name, str(prefill.rows), f"{prefill.tokens_per_second:.1f}", "first token")
        table.add_row(*row, *_percentiles(prefill.time_to_first_token), "")
    for decode in report.decode:
        name = f"{decode.name} @{decode.context_tokens}" if decode.context_tokens > 1 else decode.name
        row = (name, str(decode.rows), f"{decode.tokens_per_second:.1f}", "each token")
        table.add_row(*row, *_percentiles(decode.time_per_token), f"{decode.engine_share:.0%}")
    return table


def _percentiles(times: Distribution) -> tuple[str, str, str]:
    return tuple(f"{1000 * value:.2f} ms" for value in (times.p50, times.p95, times.p99))  # type: ignore[return-value]
