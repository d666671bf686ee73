"""hybridge build-engine."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from hybridge.cli.options import OUTPUT_PANEL, Artifact, Json, Quiet, flag, setting
from hybridge.cli.terminal import Terminal
from hybridge.cli.text import bytes_text, seconds_text

if TYPE_CHECKING:
    from hybridge.artifact.engine_record import AdvanceRecord, EngineRecord

_TARGET, _PLUGINS, _BUILD = "Target", "Plugins", "Build"


def build_engine(
    out: Artifact,
    target: Annotated[
        str | None,
        setting(metavar="NAME", help="A preset of configs/, or a TOML file.", panel=_TARGET, show_default="this GPU's"),
    ] = None,
    compute_capability: Annotated[
        list[str] | None,
        setting(metavar="X.Y", help="Target GPU such as 8.7 (repeatable).", panel=_TARGET, show_default="the preset's"),
    ] = None,
    max_batch: Annotated[
        int | None, setting(metavar="N", help="Maximum batch size.", panel=_TARGET, show_default="the preset's")
    ] = None,
    max_seq_len: Annotated[
        int | None,
        setting(metavar="N", help="Maximum tokens of a sequence.", panel=_TARGET, show_default="the preset's"),
    ] = None,
    plugins: Annotated[
        Literal["auto", "on", "off"],
        setting(metavar="WHEN", help="Use the project's CUDA plugins: auto, on or off.", panel=_PLUGINS),
    ] = "auto",
    plugin_states: Annotated[
        Literal["aliased", "separate"],
        setting(
            metavar="HOW", help="Update states in place (aliased) or in a second buffer (separate).", panel=_PLUGINS
        ),
    ] = "aliased",
    plugin_mixers: Annotated[
        Literal["joined", "separate"],
        setting(
            metavar="HOW",
            help="A Mamba2 mixer's convolution, state update and gate as one plugin (joined) or several (separate).",
            panel=_PLUGINS,
        ),
    ] = "joined",
    candidate_states: Annotated[
        Literal["snapshot", "replay"],
        setting(
            metavar="HOW",
            help="States of draft tokens: kept after each (snapshot) or advanced by a second engine (replay).",
            panel=_PLUGINS,
        ),
    ] = "snapshot",
    library: Annotated[
        Literal["auto", "tensorrt", "tensorrt_rtx"],
        setting(metavar="NAME", help="auto, tensorrt or tensorrt_rtx, which needs no GPU.", panel=_BUILD),
    ] = "auto",
    workspace_mib: Annotated[
        int | None,
        setting(metavar="MIB", help="Limit of TensorRT's scratch memory.", panel=_BUILD, show_default="the preset's"),
    ] = None,
    optimization_level: Annotated[
        int | None,
        setting(metavar="N", help="0 (fast build) to 5 (slow build).", panel=_BUILD, show_default="the preset's"),
    ] = None,
    overwrite: Annotated[
        bool, flag("--overwrite", help="Replace an engine of the same name.", panel=OUTPUT_PANEL)
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Build a TensorRT engine from an artifact; with TensorRT-RTX on a machine without a GPU."""
    with Terminal(as_json, quiet) as terminal:
        from dataclasses import asdict

        from hybridge import api

        record = api.build_engine(
            out,
            target=_preset(target),
            compute_capabilities=tuple(compute_capability or ()),
            max_batch_size=max_batch,
            max_seq_len=max_seq_len,
            plugins=plugins,
            plugin_states=plugin_states,
            plugin_mixers=plugin_mixers,
            candidate_states=candidate_states,
            library=library,
            workspace_mib=workspace_mib,
            optimization_level=optimization_level,
            overwrite=overwrite,
            progress=terminal.progress,
        )
        terminal.progress.finish()
        folder = _folder_of(out, record)
        terminal.show(f"built {folder / record.engine}", _table(record))
        terminal.document({"path": str(folder), **asdict(record)})


def _preset(target: str | None) -> str | None:
    """A preset may be named as its file in configs/, also where that folder is not at hand."""
    if target is not None and not Path(target).exists() and Path(target).parent.name == "configs":
        return Path(target).stem
    return target


def _folder_of(out: Path, record: EngineRecord) -> Path:
    """The folder that holds the engine of ``record``."""
    from hybridge.artifact.engine_record import ENGINE_FILE, read_engine_record
    from hybridge.artifact.errors import ArtifactError, EngineError

    for path in sorted(out.glob(f"engines/*/{ENGINE_FILE}")):
        with contextlib.suppress(ArtifactError):
            if read_engine_record(path) == record:
                return path.parent
    raise EngineError(f"{out}: expected the engine that was just built, found none: another program removed it")


def _table(record: EngineRecord) -> Any:
    from rich.table import Table

    table = Table(show_header=False)
    for name, value in (
        ("size", bytes_text(record.nbytes)),
        ("library", f"{record.library} {record.library_version}"),
        ("targets", ", ".join(record.compute_capabilities) or "every GPU that the library supports"),
        ("preset", record.preset),
        ("limits", f"batch {record.max_batch_size}, {record.max_seq_len} tokens"),
        ("profiles", ", ".join(profile.name for profile in record.profiles)),
        ("plugins", ", ".join(f"{n} {op}" for op, n in record.plugins.ops.items()) or f"none: {record.plugins.reason}"),
        ("layers", str(sum(record.layers.values()))),
        *([("advance", _advance_text(record.advance))] if record.advance else ()),
        ("time", seconds_text(record.build_seconds)),
    ):
        table.add_row(name, value)
    return table


def _advance_text(advance: AdvanceRecord) -> str:
    return f"{advance.engine}, {bytes_text(advance.nbytes)}, {sum(advance.layers.values())} layers"
