"""The command ``hybridge``: registers the commands and turns every failure into one sentence and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NoReturn

import click
from click.shell_completion import get_completion_class, shell_complete

from hybridge.artifact.version import __version__
from hybridge.cli.failures import BAD_INPUT, INTERRUPTED, Failure, Interrupted, failure_of
from hybridge.cli.interruption import InterruptionHandler
from hybridge.cli.parser import Commands
from hybridge.cli.process_end import end_process
from hybridge.cli.terminal import json_text
from hybridge.cli.text import printable

# A shell's exit code of a program that SIGPIPE ended (128 + 13), so that "hybridge inspect OUT | head -1" ends as
# "cat FILE | head -1" does.
READER_LEFT = 141

# Shells request completions through this.
_COMPLETION_VARIABLE = "_HYBRIDGE_COMPLETE"
COMMANDS = {
    "quantize": "Write a checkpoint with quantised weights.",
    "export": "Write the ONNX artifact of a checkpoint.",
    "verify": "Compare an artifact with transformers.",
    "evaluate": "Compare the predictions of two versions of a model.",
    "build-engine": "Build a TensorRT engine from an artifact.",
    "run": "Generate text from an artifact, or chat with it.",
    "serve": "Serve artifacts over HTTP.",
    "inspect": "Show what a checkpoint, an artifact or an engine holds.",
    "bench": "Measure the speed of an artifact.",
    "new-family": "Write the file of a new model family.",
    "conformance": "Compare a server's answers under load with those to single requests.",
}


def _print_version(ctx: click.Context, option: click.Parameter, requested: bool) -> None:
    if requested:
        print(f"hybridge {__version__}")
        ctx.exit()


def _print_completion(ctx: click.Context, option: click.Parameter, shell: str | None) -> None:
    if shell is not None:
        kind = get_completion_class(shell)
        assert kind is not None
        print(kind(app, {}, "hybridge", _COMPLETION_VARIABLE).source())
        ctx.exit()


app = Commands(
    COMMANDS,
    help="Export, verify, build and run hybrid language models at the edge.",
    epilog="Exit codes: 0 success, 1 a failed check (verify, conformance), 2 bad input or usage, 3 a bug in Hybridge, "
    "130 interrupted by Ctrl-C.",
    params=[
        click.Option(
            ["--version", "-V"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version.",
        ),
        click.Option(
            ["--completion"],
            type=click.Choice(["bash", "zsh", "fish"]),
            metavar="SHELL",
            is_eager=True,
            expose_value=False,
            callback=_print_completion,
            help='Print a script for bash, zsh or fish that completes commands and options: eval "$(hybridge '
            '--completion bash)".',
        ),
    ],
)


def main() -> NoReturn:
    """The console command: standard output is reserved for results, also when C libraries print."""
    _open_closed_streams()
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
    end_process(code)


def run_command(arguments: Sequence[str], signals: InterruptionHandler | None = None) -> int:
    """Run one command line, without the program's name; returns the exit code and prints the error if there is one.

    Without any argument that is the help, with the exit code of a usage error. After one of ``signals`` any error
    counts as the interruption: a library whose import was interrupted reports that it is damaged.
    """
    try:
        code = _invoke(list(arguments) or ["--help"])
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.stdout.flush()
        return int(code or 0) if arguments else BAD_INPUT
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as ended:
        # rich, which prints the help, ends the program when its reader closes the pipe.
        if isinstance(ended.__context__, BrokenPipeError):
            return _reader_left()
        if isinstance(ended.code, str):
            raise
        return ended.code or 0  # as the commands for shell completion end
    except (Exception, KeyboardInterrupt) as error:
        failure = _failure(error, signals)
        if failure.internal:
            import traceback

            with contextlib.suppress(OSError):
                traceback.print_exc()
        _report(failure, as_json="--json" in _before_separator(arguments))
        return failure.exit_code


def _invoke(arguments: list[str]) -> int | None:
    """click's ``main`` without its handling of Ctrl-C and of closed output pipes."""
    if instruction := os.environ.get(_COMPLETION_VARIABLE):
        return shell_complete(app, {}, app.name or "", _COMPLETION_VARIABLE, instruction)
    try:
        with app.make_context(app.name, arguments) as context:
            code: int | None = app.invoke(context)
            return code
    except click.exceptions.Exit as ended:
        return ended.exit_code


def _failure(error: BaseException, signals: InterruptionHandler | None) -> Failure:
    """The failure for ``error``; after a signal, the interruption."""
    if signals is None or not signals.interrupted:
        return failure_of(error)
    failure = failure_of(error if isinstance(error, Interrupted) else KeyboardInterrupt())
    return replace(failure, exit_code=signals.exit_code)


def _report(failure: Failure, as_json: bool) -> None:
    sentence = printable(" ".join(failure.message.split()))
    # Where one of the outputs cannot be written, the other and the exit code still tell.
    with contextlib.suppress(OSError):
        print(f"error: {sentence}", file=sys.stderr)
    with contextlib.suppress(OSError):
        if as_json:
            print(json_text({"error": sentence, "exit_code": failure.exit_code}), flush=True)


def _before_separator(arguments: Sequence[str]) -> Iterator[str]:
    for argument in arguments:
        if argument == "--":
            return
        yield argument


def _reader_left() -> int:
    """The reader closed our output, as head does: write nothing more. Returns READER_LEFT."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
        # Discard what was not read, so that Python can close the stream.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    return READER_LEFT


def _open_closed_streams() -> None:
    """Open the null device where a standard stream is closed, so that no other file gets its descriptor."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _keep_standard_output() -> None:
    """Move standard output to another descriptor; what a library writes to descriptor 1 goes to standard error."""
    try:
        copy = os.dup(1)
        os.dup2(2, 1)
    except OSError:
        return  # Another file took a closed stream's descriptor before: nothing to protect.
    sys.stdout = open(copy, "w", encoding=sys.stdout.encoding, errors="replace", buffering=1)  # noqa: SIM115
