"""hybridge verify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybridge.cli.options import ARTIFACT, CHECKPOINT, JSON, QUIET
from hybridge.cli.parser import INTEGERS, Command, Option, given, options_of
from hybridge.cli.terminal import Terminal
from hybridge.verification.options import VerifyOptions


def _run(checkpoint: Path, out: Path, as_json: bool, quiet: bool, **settings: Any) -> int:
    with Terminal(as_json, quiet) as terminal:
        from hybridge import api

        report = api.verify(checkpoint, out, progress=terminal.progress, **given(settings))
        terminal.progress.finish()
        terminal.show(report.render())
        terminal.document(report.to_json())
    return 0 if report.passed else 1


COMMAND = Command(
    "verify",
    "Compare an artifact with transformers in float32: logits and states, layer by layer. Exit code 1 if they differ.",
    _run,
    CHECKPOINT,
    ARTIFACT,
    *options_of(VerifyOptions),
    Option(
        "--prompt-lengths",
        help="Tokens of each random prompt; they also form one ragged batch.",
        type=INTEGERS,
        metavar="N,...",
        default="1, 7 and one that crosses the model's chunks and sliding windows",
    ),
    JSON,
    QUIET,
)
