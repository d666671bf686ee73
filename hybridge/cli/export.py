"""hybridge export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybridge.cli.options import CHECKPOINT, JSON, QUIET
from hybridge.cli.parser import OUTPUT, Argument, Command, Switch, given, options_of
from hybridge.cli.terminal import Terminal
from hybridge.cli.text import bytes_text, count_text
from hybridge.exporter.options import ExportOptions


def _run(checkpoint: Path, out: Path, dry_run: bool, as_json: bool, quiet: bool, **settings: Any) -> None:
    with Terminal(as_json, quiet) as terminal:
        from hybridge.hub import checkpoint_folder

        options = ExportOptions.named(**given(settings))
        folder = checkpoint_folder(checkpoint)
        if dry_run:
            _show_plan(folder, out, options, terminal)
        else:
            _export(folder, out, options, terminal)


COMMAND = Command(
    "export",
    "Export a checkpoint to ONNX: graph, weights by reference and runtime configuration, in one folder.",
    _run,
    CHECKPOINT,
    Argument("out", "Folder to write."),
    *options_of(ExportOptions),
    Switch("--dry-run", help="Print the plan; write nothing.", group=OUTPUT),
    JSON,
    QUIET,
)


def _export(checkpoint: Path, out: Path, options: ExportOptions, terminal: Terminal) -> None:
    from hybridge.exporter.trace.deferred_imports import deferred_imports
    from hybridge.exporter.trace.preload import preload_torch
    from hybridge.requirements import require

    require("torch", "onnxscript")
    preload_torch()
    with deferred_imports():
        from hybridge.exporter.export import export_checkpoint

        report = export_checkpoint(checkpoint, out, options, terminal.progress)
    terminal.progress.finish()
    terminal.show(
        f"exported {report.model_type} ({report.layers} layers, {report.dtype}) to {report.out}: {report.nodes} nodes, "
        f"{bytes_text(report.bytes_linked)} linked, {bytes_text(report.bytes_written)} written",
    )
    terminal.notes(report.notes)
    terminal.document(report.to_json())


def _show_plan(checkpoint: Path, out: Path, options: ExportOptions, terminal: Terminal) -> None:
    from hybridge.exporter.output import check_export_output
    from hybridge.exporter.plan import plan_export

    check_export_output(checkpoint, out, options.overwrite)
    plan = plan_export(checkpoint, options).to_json()
    terminal.show(_plan_table(plan, out))
    terminal.notes(plan["notes"])
    terminal.document({"out": str(out), **plan})


def _plan_table(plan: dict[str, Any], out: Path) -> Any:
    from rich.table import Table

    kinds = plan["layer_types"]
    layers = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    table = Table(title=f"would export to {out}", title_justify="left", show_header=False)
    for name, value in (
        ("model", str(plan["model_type"])),
        ("layers", f"{len(kinds)}: {layers}"),
        ("parameters", count_text(plan["parameters"])),
        ("compute type", f"{plan['dtype']} (checkpoint: {plan['checkpoint_dtype']})"),
        ("weights", f"{bytes_text(plan['weight_bytes'])} by reference, {bytes_text(plan['derived_bytes'])} computed"),
        ("states", f"{bytes_text(plan['state_bytes_per_row'])} a row"),
        ("KV cache", f"{bytes_text(plan['kv_cache_bytes_per_token'])} a token and row"),
        ("prediction head", "" if plan["mtp_layers"] is None else ", ".join(plan["mtp_layers"])),
        ("limits", f"batch {plan['max_batch_size']}, {plan['max_seq_len']} tokens"),
    ):
        if value:
            table.add_row(name, value)
    return table
