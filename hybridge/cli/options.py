"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

EngineName = Literal["auto", "onnxruntime", "onnxruntime-portable", "tensorrt", "torch"]
# With the short names that other tools know.
ComputeType = Literal["auto", "float16", "bfloat16", "float32", "fp16", "half", "bf16", "fp32"]
KvType = Literal["auto", "fp8_e4m3"]
StateType = Literal["float32", "float16", "bfloat16", "fp32", "fp16", "half", "bf16"]

Artifact = Annotated[Path, typer.Argument(metavar="OUT", help="Folder written by hybridge export.", show_default=False)]
Checkpoint = Annotated[
    Path,
    typer.Argument(
        metavar="CHECKPOINT",
        help="Folder of a Hugging Face checkpoint, or the id of one on the hub.",
        show_default=False,
    ),
]
# Panels of help pages.
OUTPUT_PANEL, ENGINE_PANEL = "Output", "Engine"


def flag(*names: str, help: str, panel: str | None = None) -> Any:
    """A flag: its help shows no type."""
    return typer.Option(*names, metavar="", help=help, rich_help_panel=panel)


def setting(*names: str, metavar: str, help: str, panel: str | None = None, **more: Any) -> Any:
    """An option with a value, which its help calls ``metavar``: short, so that the help has room."""
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=panel, **more)


Json = Annotated[bool, flag("--json", help="Print one JSON document on standard output.", panel=OUTPUT_PANEL)]
Check = Annotated[
    bool,
    flag("--check", help="First compare OUT with its manifest.json; weights by header, or whole after --full-hash."),
]
Quiet = Annotated[bool, flag("--quiet", "-q", help="No progress and no remarks on standard error.", panel=OUTPUT_PANEL)]
Engine = Annotated[
    EngineName,
    setting(
        "--engine",
        metavar="NAME",
        help="auto (the best available), onnxruntime, onnxruntime-portable, tensorrt or torch.",
        panel=ENGINE_PANEL,
    ),
]
EngineFolder = Annotated[
    str | None,
    setting(
        "--engine-folder",
        metavar="DIR",
        help="The TensorRT engine to run: a folder, or the name of one in OUT/engines.",
        panel=ENGINE_PANEL,
        show_default="the one for this GPU",
    ),
]
Threads = Annotated[
    int | None,
    setting("--threads", metavar="N", help="CPU threads.", panel=ENGINE_PANEL, min=1, max=1024, show_default="all"),
]


def integers(text: str, option: str) -> tuple[int, ...]:
    """The integers of a comma-separated list such as "1,7,33"; a usage error names ``option``."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"expected integers such as 1,7,33, found {text!r}", param_hint=option) from None
