"""hybridge inspect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridge.cli.options import Json
from hybridge.cli.terminal import Terminal


def inspect(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT|OUT|ENGINE", help="A checkpoint, an exported folder or an engine.", show_default=False
        ),
    ],
    as_json: Json = False,
) -> None:
    """Show what a checkpoint, an artifact or an engine holds: layers, states, bytes, operators, bindings."""
    with Terminal(as_json) as terminal:
        from hybridge import api
        from hybridge.cli.inspection_tables import tables_of

        inspection = api.inspect(path)
        terminal.show(*tables_of(inspection))
        terminal.document(inspection.to_json())
