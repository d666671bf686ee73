"""The command ``hybridge``: registers the commands and turns every failure into one sentence and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, NoReturn

import typer

from hybridge.cli.bench import bench
from hybridge.cli.build_engine import build_engine
from hybridge.cli.export import export
from hybridge.cli.failures import BAD_INPUT, INTERRUPTED, AnswerInterrupted, Failure, failure_of
from hybridge.cli.help_page import Command, CommandGroup
from hybridge.cli.inspect import inspect
from hybridge.cli.interruption import InterruptionHandler
from hybridge.cli.run import run
from hybridge.cli.terminal import json_text
from hybridge.cli.text import printable
from hybridge.cli.verify import verify
from hybridge.version import __version__

# What a shell reports of a program that SIGPIPE ended (128 + 13), so that "hybridge inspect OUT | head -1" ends as
# "cat FILE | head -1" does.
READER_LEFT = 141

app = typer.Typer(
    name="hybridge",
    cls=CommandGroup,
    help="Export, verify, build and run hybrid language models at the edge.",
    epilog="Exit codes: 0 good, 1 the check failed (verify), 2 bad input or usage, 3 a bug of Hybridge, "
    "130 interrupted by Ctrl-C.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, command in (
    ("export", export),
    ("verify", verify),
    ("build-engine", build_engine),
    ("run", run),
    ("inspect", inspect),
    ("bench", bench),
):
    app.command(name, cls=Command)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hybridge {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", metavar="", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """The console command: standard output is kept for results, also from C libraries that print."""
    _keep_standard_output()
    signals = InterruptionHandler()
    signals.install()
    code = run_command(sys.argv[1:], signals)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    if signals.interrupted:
        # Everything is cleaned up; while Python shuts down, a late signal would still change the exit code.
        os._exit(code)
    sys.exit(code)


def run_command(arguments: Sequence[str], signals: InterruptionHandler | None = None) -> int:
    """Run one command line, without the program's name; returns the exit code and prints the error if there is one.

    Without any argument that is the help, with the exit code of a usage error. After one of ``signals`` any error is
    the interruption: a library that a signal meets while it is imported says that it is damaged.
    """
    try:
        code = app(list(arguments) or ["--help"], prog_name="hybridge", standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.stdout.flush()
        return int(code or 0) if arguments else BAD_INPUT
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as ended:
        # rich, which prints the help, ends the program when the reader has gone.
        if isinstance(ended.__context__, BrokenPipeError):
            return _reader_left()
        if isinstance(ended.code, str):
            raise
        return ended.code or 0  # as the commands for shell completion end
    except (Exception, KeyboardInterrupt) as error:
        failure = _failure(error, signals)
        if failure.internal:
            traceback.print_exc()
        with contextlib.suppress(BrokenPipeError):
            _report(failure, as_json="--json" in _before_separator(arguments))
        return failure.exit_code


def _failure(error: BaseException, signals: InterruptionHandler | None) -> Failure:
    """The failure that ``error`` stands for; after a signal, the interruption."""
    if signals is None or not signals.interrupted:
        return failure_of(error)
    failure = failure_of(error if isinstance(error, AnswerInterrupted) else KeyboardInterrupt())
    return replace(failure, exit_code=signals.exit_code)


def _report(failure: Failure, as_json: bool) -> None:
    sentence = printable(" ".join(failure.message.split()))
    print(f"error: {sentence}", file=sys.stderr)
    if as_json:
        print(json_text({"error": sentence, "exit_code": failure.exit_code}), flush=True)


def _before_separator(arguments: Sequence[str]) -> Iterator[str]:
    for argument in arguments:
        if argument == "--":
            return
        yield argument


def _reader_left() -> int:
    """The program that read our output has gone, as head does: say nothing more. Returns READER_LEFT."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
        # What no reader took goes nowhere, so that Python can close the stream.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    return READER_LEFT


def _keep_standard_output() -> None:
    """Move standard output to another descriptor; what a library writes to descriptor 1 goes to standard error."""
    try:
        copy = os.dup(1)
        os.dup2(2, 1)
    except OSError:
        return  # A closed standard output or error: nothing to protect.
    sys.stdout = open(copy, "w", encoding=sys.stdout.encoding, errors="replace", buffering=1)  # noqa: SIM115
