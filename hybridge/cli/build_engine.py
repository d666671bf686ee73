"""hybridge build-engine."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridge.cli.options import ARTIFACT, JSON, QUIET
from hybridge.cli.parser import Command, given, options_of
from hybridge.cli.terminal import Terminal
from hybridge.cli.text import bytes_text, seconds_text
from hybridge.trt_plugins.build.options import BuildOptions

if TYPE_CHECKING:
    from hybridge.artifact.engine_record import AdvanceRecord, EngineRecord


def _run(out: Path, target: str | None, as_json: bool, quiet: bool, **settings: Any) -> None:
    with Terminal(as_json, quiet) as terminal:
        from hybridge import api

        record = api.build_engine(out, target=_preset(target), progress=terminal.progress, **given(settings))
        terminal.progress.finish()
        folder = _folder_of(out, record)
        head = _head(folder)
        terminal.show(f"built {folder / record.engine}", _table(record, head))
        terminal.document({"path": str(folder), **asdict(record), "head": head and asdict(head)})


COMMAND = Command(
    "build-engine",
    "Build a TensorRT engine from an artifact; with TensorRT-RTX on a machine without a GPU.",
    _run,
    ARTIFACT,
    *options_of(BuildOptions),
    JSON,
    QUIET,
)


def _preset(target: str | None) -> str | None:
    """A preset may be named by its file in configs/, even where that folder does not exist."""
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


def _head(folder: Path) -> EngineRecord | None:
    """The record of the prediction head's engine, if one was built."""
    from hybridge.artifact.engine_record import ENGINE_FILE, HEAD_FOLDER, read_engine_record
    from hybridge.artifact.untrusted_file import has_file

    return (
        read_engine_record(folder / HEAD_FOLDER / ENGINE_FILE) if has_file(folder / HEAD_FOLDER, ENGINE_FILE) else None
    )


def _table(record: EngineRecord, head: EngineRecord | None) -> Any:
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
        *([("prediction head", bytes_text(head.nbytes))] if head else ()),
        ("time", seconds_text(record.build_seconds)),
    ):
        table.add_row(name, value)
    return table


def _advance_text(advance: AdvanceRecord) -> str:
    return f"{advance.engine}, {bytes_text(advance.nbytes)}, {sum(advance.layers.values())} layers"
