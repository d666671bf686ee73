"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

EngineName = Literal["auto", "onnxruntime", "onnxruntime-portable", "tensorrt", "torch"]
ComputeType = Literal["auto", "float16", "bfloat16", "float32"]
KvType = Literal["auto", "fp8_e4m3"]
StateType = Literal["float32", "float16", "bfloat16"]

Artifact = Annotated[Path, typer.Argument(metavar="OUT", help="Folder written by hybridge export.", show_default=False)]
Checkpoint = Annotated[
    Path, typer.Argument(metavar="CHECKPOINT", help="Folder of a Hugging Face checkpoint.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
Check = Annotated[
    bool, typer.Option("--check", help="First compare every file of OUT with the hashes of its manifest.json.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no remarks on standard error.")]
Engine = Annotated[EngineName, typer.Option("--engine", help="What computes; auto takes the best that is available.")]
EngineFolder = Annotated[
    str | None,
    typer.Option(
        "--engine-folder", metavar="NAME|DIR", help="The TensorRT engine to run.", show_default="the one for this GPU"
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, max=1024, help="CPU threads.", show_default="all cores")
]


def integers(text: str, option: str) -> tuple[int, ...]:
    """The integers of a comma-separated list such as "1,7,33"; a usage error names ``option``."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"expected integers such as 1,7,33, found {text!r}", param_hint=option) from None
