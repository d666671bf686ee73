"""hybridge export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hybridge.cli.options import Checkpoint, ComputeType, Json, KvType, Quiet, StateType
from hybridge.cli.terminal import Terminal
from hybridge.cli.text import bytes_text, count_text

if TYPE_CHECKING:
    from exporter.options import ExportOptions


def export(
    checkpoint: Checkpoint,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.", show_default=False)],
    dtype: Annotated[ComputeType, typer.Option(help="Compute type; auto is the checkpoint's.")] = "auto",
    state_dtype: Annotated[StateType, typer.Option(help="Type of the recurrent states.")] = "float32",
    kv_dtype: Annotated[KvType, typer.Option(help="Type of keys and values (fp8_e4m3: paged only).")] = "auto",
    layout: Annotated[Literal["dense", "paged"], typer.Option(help="How the KV caches lie in memory.")] = "dense",
    kernels: Annotated[
        Literal["required", "optional"], typer.Option(help="optional: also sizes that no CUDA kernel runs.")
    ] = "required",
    speculative_tokens: Annotated[
        int, typer.Option(metavar="K", help="Keep the states after K more tokens of a row (paged).")
    ] = 0,
    no_mtp: Annotated[
        bool, typer.Option("--no-mtp", help="Leave out the checkpoint's multi-token prediction head (paged).")
    ] = False,
    max_batch: Annotated[int, typer.Option(help="Most rows of one batch.")] = 8,
    max_seq_len: Annotated[
        int | None, typer.Option(help="Most tokens of one row.", show_default="the checkpoint's")
    ] = None,
    all_logits: Annotated[bool, typer.Option("--all-logits", help="Logits of every token, not only the last.")] = False,
    weights: Annotated[Literal["link", "copy"], typer.Option(help="Hard-link or copy the weight files.")] = "link",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; trace and write nothing.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export, its engines included.")
    ] = False,
    no_scan: Annotated[
        bool, typer.Option("--no-scan", help="Do not look for weights that are not finite or do not fit the type.")
    ] = False,
    full_hash: Annotated[bool, typer.Option("--full-hash", help="Hash all weight bytes into the manifest.")] = False,
    ignore_config_field: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Accept this unknown config field (repeatable).", show_default=False),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Export a checkpoint to ONNX: graph, weights by reference and the runtime contract, in one folder."""
    with Terminal(as_json, quiet) as terminal:
        from artifact.dtypes import DType
        from exporter.options import ExportOptions

        options = ExportOptions(
            dtype=None if dtype == "auto" else DType(dtype),
            state_dtype=DType(state_dtype),
            kv_dtype=kv_dtype,
            layout=layout,
            kernels=kernels,
            speculative_tokens=speculative_tokens,
            mtp=not no_mtp,
            max_batch_size=max_batch,
            max_seq_len=max_seq_len,
            all_logits=all_logits,
            weights=weights,
            overwrite=overwrite,
            scan=not no_scan,
            full_hash=full_hash,
            ignore_config_fields=tuple(ignore_config_field or ()),
        )
        if dry_run:
            _show_plan(checkpoint, out, options, terminal)
        else:
            _export(checkpoint, out, options, terminal)


def _export(checkpoint: Path, out: Path, options: ExportOptions, terminal: Terminal) -> None:
    from exporter.export import export_checkpoint
    from hybridge.requirements import require

    require("torch", "onnxscript")
    report = export_checkpoint(checkpoint, out, options, terminal.progress)
    terminal.progress.finish()
    terminal.show(
        f"exported {report.model_type} ({report.layers} layers, {report.dtype}) to {report.out}: {report.nodes} nodes, "
        f"{bytes_text(report.bytes_linked)} linked, {bytes_text(report.bytes_written)} written",
        *(f"note: {note}" for note in report.notes),
    )
    terminal.document(report.to_json())


def _show_plan(checkpoint: Path, out: Path, options: ExportOptions, terminal: Terminal) -> None:
    from exporter.output import check_export_output
    from exporter.plan import plan_export

    check_export_output(checkpoint, out, options.overwrite)
    plan = plan_export(checkpoint, options).to_json()
    terminal.show(_plan_table(plan, out), *(f"note: {note}" for note in plan["notes"]))
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
