"""hybridge evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybridge.cli.options import JSON, QUIET
from hybridge.cli.parser import PATH, Argument, Command, Option, given, options_of
from hybridge.cli.terminal import Terminal
from hybridge.evaluation.options import EvaluateOptions


def _run(reference: Path, out: Path, text: Path, as_json: bool, quiet: bool, **settings: Any) -> None:
    with Terminal(as_json, quiet) as terminal:
        from hybridge import api

        terminal.report(api.evaluate(reference, out, text, progress=terminal.progress, **given(settings)))


COMMAND = Command(
    "evaluate",
    "Compare the predictions of two versions of a model on a text: perplexity, KL divergence, same top token.",
    _run,
    Argument("reference", "A checkpoint, computed by transformers in float32, or an artifact."),
    Argument("out", "The other one: a checkpoint or an artifact."),
    Option("--text", help="Text file in UTF-8.", type=PATH, metavar="FILE", required=True),
    *options_of(EvaluateOptions),
    JSON,
    QUIET,
)
