"""hybridge inspect."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from hybridge.artifact.errors import ArtifactError
from hybridge.cli.options import CHECK, JSON, QUIET
from hybridge.cli.parser import Argument, Command, Switch
from hybridge.cli.terminal import Terminal
from hybridge.cli.text import printable

# An error names up to this many damaged files.
MOST_NAMED = 3


def _run(path: Path, check: bool, onnx_check: bool, as_json: bool, quiet: bool) -> int:
    with Terminal(as_json, quiet) as terminal:
        from hybridge import api
        from hybridge.cli.inspection_tables import tables_of
        from hybridge.inspection import ArtifactInspection

        if onnx_check:
            from hybridge.inspection.onnx_check import check_onnx

            terminal.remark(f"onnx.checker accepts {' and '.join(check_onnx(path))}")
        inspection = api.inspect(path, check=check)
        terminal.show(*tables_of(inspection))
        terminal.notes(getattr(inspection, "notes", ()))
        terminal.document(inspection.to_json())
    # Show the rest anyway: it tells what is missing.
    damage = inspection.damage if isinstance(inspection, ArtifactInspection) else ()
    if not damage:
        return 0
    print(
        printable(
            f"error: {path}: expected the files as they were exported, found {_listed(damage)}: copy the whole "
            "folder again (cp -rL, rsync), or export the checkpoint again"
        ),
        file=sys.stderr,
    )
    return ArtifactError.exit_code


def _listed(damage: Sequence[str]) -> str:
    more = len(damage) - MOST_NAMED
    return "; ".join(damage[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


COMMAND = Command(
    "inspect",
    "Show what a checkpoint, an artifact or an engine holds: layers, states, bytes, operators, bindings. Exit "
    "code 2 also means that files of an artifact are missing or have changed size.",
    _run,
    Argument("path", "A checkpoint, an exported folder or an engine.", metavar="CHECKPOINT|OUT|ENGINE"),
    CHECK,
    Switch("--onnx-check", help="First run onnx.checker over the graphs of OUT, even with linked weights."),
    JSON,
    QUIET,
)
