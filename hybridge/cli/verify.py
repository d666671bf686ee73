"""hybridge verify."""

from __future__ import annotations

from typing import Annotated

import typer

from hybridge.cli.options import Artifact, Checkpoint, EngineName, Json, Quiet, integers
from hybridge.cli.terminal import Terminal


def verify(
    checkpoint: Checkpoint,
    out: Artifact,
    engine: Annotated[
        EngineName,
        typer.Option("--engine", help="What runs OUT; auto is the engine that generates and the file as exported."),
    ] = "auto",
    prompt_lengths: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Tokens of each random prompt; they also form one ragged batch.",
            show_default="1, 7 and one that crosses the model's chunks and sliding windows",
        ),
    ] = None,
    decode_steps: Annotated[int, typer.Option(help="Tokens generated after each prompt.")] = 16,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Largest relative error of a tensor.", show_default="1e-4; more for engines in 16 bits"),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Compare an artifact with transformers in float32: logits and states, layer by layer. Exit code 1: differs."""
    lengths = None if prompt_lengths is None else integers(prompt_lengths, "--prompt-lengths")
    with Terminal(as_json, quiet) as terminal:
        from hybridge import api

        report = api.verify(
            checkpoint,
            out,
            engine=engine,
            prompt_lengths=lengths,
            decode_steps=decode_steps,
            tolerance=tolerance,
            progress=terminal.progress,
        )
        terminal.progress.finish()
        terminal.show(report.render())
        terminal.document(report.to_json())
    return 0 if report.passed else 1
