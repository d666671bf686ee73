"""hybridge quantize."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybridge.cli.failures import Interrupted
from hybridge.cli.options import CHECKPOINT, JSON, QUIET
from hybridge.cli.parser import Argument, Command, given, options_of
from hybridge.cli.terminal import Terminal
from hybridge.quantization.options import QuantizeOptions
from hybridge.quantization.work_folder import work_path


def _run(checkpoint: Path, out: Path, as_json: bool, quiet: bool, **settings: Any) -> None:
    with Terminal(as_json, quiet) as terminal:
        from hybridge import api

        try:
            terminal.report(api.quantize(checkpoint, out, progress=terminal.progress, **given(settings)))
        except KeyboardInterrupt:
            if not work_path(out).exists():
                raise
            raise Interrupted(
                f"{work_path(out)} keeps the finished layers: run the command again with --resume to continue"
            ) from None


COMMAND = Command(
    "quantize",
    "Write a checkpoint with quantised weights, in the format of compressed-tensors (vLLM, transformers).",
    _run,
    CHECKPOINT,
    Argument("out", "Folder to write."),
    *options_of(QuantizeOptions),
    JSON,
    QUIET,
)
