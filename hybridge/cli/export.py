"""hybridge export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hybridge.cli.options import OUTPUT_PANEL, Checkpoint, ComputeType, Json, KvType, Quiet, StateType, flag, setting
from hybridge.cli.terminal import Terminal
from hybridge.cli.text import bytes_text, count_text

if TYPE_CHECKING:
    from hybridge.exporter.options import ExportOptions

_TYPES, _GRAPH, _WEIGHTS = "Types", "Graph", "Weights"


def export(
    checkpoint: Checkpoint,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.", show_default=False)],
    dtype: Annotated[
        ComputeType,
        setting(
            metavar="TYPE", help="Compute type: float16, bfloat16, float32 or auto (the checkpoint's).", panel=_TYPES
        ),
    ] = "auto",
    state_dtype: Annotated[
        StateType, setting(metavar="TYPE", help="Recurrent states: float32, float16 or bfloat16.", panel=_TYPES)
    ] = "float32",
    kv_dtype: Annotated[
        KvType, setting(metavar="TYPE", help="Keys and values: auto (as --dtype) or fp8_e4m3 (paged).", panel=_TYPES)
    ] = "auto",
    layout: Annotated[
        Literal["dense", "paged"],
        setting(metavar="LAYOUT", help="KV caches: dense (a row each) or paged (blocks, for serving).", panel=_GRAPH),
    ] = "dense",
    max_batch: Annotated[int, setting(metavar="N", help="Maximum batch size.", panel=_GRAPH)] = 8,
    max_seq_len: Annotated[
        int | None,
        setting(metavar="N", help="Maximum tokens of a sequence.", panel=_GRAPH, show_default="the checkpoint's"),
    ] = None,
    all_logits: Annotated[
        bool, flag("--all-logits", help="Logits of every token, not only the last.", panel=_GRAPH)
    ] = False,
    speculative_tokens: Annotated[
        int, setting(metavar="K", help="Keep the states after K draft tokens of a row (paged).", panel=_GRAPH)
    ] = 0,
    no_mtp: Annotated[
        bool, flag("--no-mtp", help="Leave out the multi-token prediction head (paged).", panel=_GRAPH)
    ] = False,
    kernels: Annotated[
        Literal["required", "optional"],
        setting(metavar="WHICH", help="optional: accept sizes that no CUDA kernel supports.", panel=_GRAPH),
    ] = "required",
    weights: Annotated[
        Literal["auto", "reflink", "link", "copy"],
        setting(
            metavar="HOW",
            help="Weight files: reflink, link (hard links), copy, or auto (the first of these that works).",
            panel=_WEIGHTS,
        ),
    ] = "auto",
    no_scan: Annotated[
        bool, flag("--no-scan", help="Skip the search for weights that do not fit the type.", panel=_WEIGHTS)
    ] = False,
    full_hash: Annotated[
        bool, flag("--full-hash", help="Hash all weight bytes into the manifest.", panel=_WEIGHTS)
    ] = False,
    ignore_config_field: Annotated[
        list[str] | None,
        setting(metavar="NAME", help="Accept this unknown config field (repeatable).", show_default=False),
    ] = None,
    dry_run: Annotated[bool, flag("--dry-run", help="Print the plan; write nothing.", panel=OUTPUT_PANEL)] = False,
    overwrite: Annotated[
        bool, flag("--overwrite", help="Replace an earlier export, its engines included.", panel=OUTPUT_PANEL)
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Export a checkpoint to ONNX: graph, weights by reference and the runtime contract, in one folder."""
    with Terminal(as_json, quiet) as terminal:
        from hybridge.artifact.dtypes import DType
        from hybridge.exporter.options import ExportOptions
        from hybridge.hub import checkpoint_folder

        options = ExportOptions(
            dtype=None if dtype == "auto" else DType.named(dtype),
            state_dtype=DType.named(state_dtype),
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
        folder = checkpoint_folder(checkpoint)
        if dry_run:
            _show_plan(folder, out, options, terminal)
        else:
            _export(folder, out, options, terminal)


def _export(checkpoint: Path, out: Path, options: ExportOptions, terminal: Terminal) -> None:
    from hybridge.exporter.export import export_checkpoint
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
    from hybridge.exporter.output import check_export_output
    from hybridge.exporter.plan import plan_export

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
